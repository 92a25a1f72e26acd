"""The form of a cache entry: files with the hash of each, as a directory or as one object.

``entry.json`` in it names the fingerprint that it belongs to and every file's SHA-256, so that an
entry is either whole and the right one or is refused, wherever it comes from.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INDEX = "entry.json"

FORMAT = 1
"""Raised when the form changes; entries of another are refused."""

_DATE = (1980, 1, 1, 0, 0, 0)


class EntryError(Exception):
    """An entry is not whole, or not the one that was asked for; the text says in what."""


def index_of(files: Mapping[str, bytes], fingerprint: str) -> bytes:
    """Return the content of ``entry.json`` for an entry of these files."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    tree = {"format": FORMAT, "fingerprint": fingerprint, "files": hashes}
    return (json.dumps(tree, sort_keys=True, indent=1) + "\n").encode()


def check(files: Mapping[str, bytes], fingerprint: str) -> None:
    """Compare an entry's files, the index among them, with the index and the fingerprint.

    Raises:
        EntryError: they differ.
    """
    try:
        tree: Any = json.loads(files[INDEX])
        form, owner, hashes = tree["format"], tree["fingerprint"], tree["files"]
    except KeyError as error:
        raise EntryError(f"has no {error}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise EntryError(f"{INDEX} is not readable JSON: {error}") from error
    if form != FORMAT:
        raise EntryError(f"format is {form}, must be {FORMAT}")
    if not isinstance(hashes, dict):
        raise EntryError(f"{INDEX}: files is a {type(hashes).__name__}, must be an object")
    if owner != fingerprint:
        raise EntryError(f"is the entry of {owner}")
    found = {name: content for name, content in files.items() if name != INDEX}
    for name in sorted({*hashes, *found}):
        if name not in found:
            raise EntryError(f"lacks {name}")
        if hashlib.sha256(found[name]).hexdigest() != hashes.get(name):
            raise EntryError(f"{name} is not what was stored")


def read_directory(directory: Path) -> dict[str, bytes]:
    """Return the content of every file of an entry; raises EntryError where one is unreadable."""
    try:
        return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
    except OSError as error:
        name = Path(error.filename or directory).name
        raise EntryError(f"{name} cannot be read: {error.strerror}") from error


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return files as one object, which ``unpack`` takes apart."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(
                zipfile.ZipInfo(name, _DATE), files[name], compress_type=zipfile.ZIP_DEFLATED
            )
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, bytes]:
    """Return the files of an object; raises EntryError if it is cut off, altered or no object."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            for name in names:
                # They become file names: none may lead out of its directory.
                if not name or "/" in name or "\\" in name or name in (".", ".."):
                    raise EntryError(f"holds {name!r}, must hold plain file names")
            return {name: archive.read(name) for name in names}
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, EOFError) as error:
        raise EntryError(f"is cut off or altered: {error}") from error
    except (NotImplementedError, RuntimeError) as error:
        raise EntryError(f"is not as it was written: {error}") from error
