"""Reading a built artifact: what it needs, what it exports, what it embeds. No tool is run."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from tilewheel_build.errors import ArtifactError

IMAGE_SECTION = ".tilewheel_image"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedObject:
    """The facts of one ELF file that a manylinux tag and the loader depend on."""

    machine: str
    needed: tuple[str, ...]
    exported: tuple[str, ...]
    glibc: tuple[int, ...]
    image: bytes


def read_shared_object(path: Path) -> SharedObject:
    """Read one artifact.

    Raises:
        ArtifactError: the file is missing or is no ELF shared object.
    """
    try:
        return parse_shared_object(path.read_bytes())
    except (ArtifactError, OSError) as error:
        raise ArtifactError(f"{path}: is not a readable shared object: {error}") from error


def parse_shared_object(content: bytes) -> SharedObject:
    """Read the bytes of one shared object.

    Raises:
        ArtifactError: they are none.
    """
    try:
        return _read(ELFFile(io.BytesIO(content)))
    except (ELFError, struct.error) as error:
        raise ArtifactError(str(error)) from error


def _read(elf: ELFFile) -> SharedObject:
    needed: list[str] = []
    exported: list[str] = []
    glibc: tuple[int, ...] = (0,)
    image = b""
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            # A tag has the attribute that its kind names.
            tags: list[Any] = list(section.iter_tags())
            needed += [tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"]
        elif isinstance(section, GNUVerNeedSection):
            for _, versions in section.iter_versions():
                for version in versions:
                    if version.name.startswith("GLIBC_"):
                        glibc = max(glibc, _version(version.name.removeprefix("GLIBC_")))
        elif isinstance(section, SymbolTableSection) and section.name == ".dynsym":
            exported += [
                symbol.name
                for symbol in section.iter_symbols()
                if symbol.entry.st_shndx != "SHN_UNDEF" and symbol.name
            ]
        if section.name == IMAGE_SECTION:
            image = section.data()
    return SharedObject(
        machine=str(elf.header.e_machine),
        needed=tuple(sorted(needed)),
        exported=tuple(sorted(exported)),
        glibc=glibc,
        image=image,
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
