"""The JSON file that lists artifacts: what each is, where it lies, and what it was built from.

The reader owns the format. It refuses another major version, ignores fields it does not know, and
rejects paths that could leave the manifest's directory. The writer's output is a function of the
values alone: sorted, no time stamps, no absolute paths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tilewheel.errors import KeyFormatError, ManifestError
from tilewheel.key import Key

SCHEMA_VERSION = (1, 0)
"""Major and minor version of the format. Another major version is refused."""

RUNTIME_ABI = 1
"""Number of the calling convention between loader and artifact (argument order, entry symbols)."""

FILE_NAME = "manifest.json"
MAX_SIZE_BYTES = 64 * 1024 * 1024

_SHA256 = re.compile(r"[0-9a-f]{64}")
_ENTRY = re.compile(r"__tvm_ffi_[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of the entry function, in calling order.

    ``kind`` is ``tensor``, ``scalar`` (the caller's number) or ``device`` (a number that the loader
    takes from the device description, e.g. ``num_sms``). ``shape`` holds integers, and names of
    dimensions that the launcher binds at run time.
    """

    name: str
    kind: str
    dtype: str
    role: str = "in"
    shape: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How the entry function launches the kernel; grid expressions are C over run-time values."""

    kernel: str
    parameters: tuple[str, ...]
    grid: tuple[str, ...]
    block: tuple[int, ...]
    dynamic_shared_bytes: int
    pdl: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the device compiler reported, where it reports it."""

    registers: int | None = None
    spill_bytes: int | None = None
    static_shared_bytes: int | None = None
    dropped_buffer_versions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One shared object.

    ``limits`` bounds the values that run-time parameters may take, ``multiples`` names the divisor
    that a value of them must have.
    """

    key: Key
    path: str
    sha256: str
    size_bytes: int
    entry: str
    arguments: tuple[Argument, ...]
    launch: Launch
    limits: tuple[tuple[str, int, int], ...]
    resources: Resources
    minimum_driver: str
    toolchain: tuple[tuple[str, str], ...]
    fingerprint: str
    profiles: tuple[str, ...]
    verification: str
    multiples: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A shared library that must be open before an artifact of the manifest is (the simulator)."""

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All artifacts of one backend, sorted by key, and the libraries that they open by name."""

    schema_version: tuple[int, int]
    tilewheel_version: str
    runtime_abi: int
    backend: str
    source_commit: str | None
    source_dirty: bool | None
    artifacts: tuple[Artifact, ...]
    libraries: tuple[Library, ...] = ()


def dump(manifest: Manifest) -> str:
    """Return the manifest's JSON text; equal manifests give equal text."""
    tree = asdict(manifest)
    tree["schema_version"] = list(manifest.schema_version)
    artifacts = sorted(manifest.artifacts, key=lambda artifact: artifact.key.sort_key())
    tree["artifacts"] = [_artifact_tree(artifact) for artifact in artifacts]
    return json.dumps(tree, sort_keys=True, indent=1) + "\n"


def _artifact_tree(artifact: Artifact) -> dict[str, Any]:
    tree = asdict(artifact)
    # The parameters and the target are in the key; they are repeated for readers of the JSON.
    tree["key"] = str(artifact.key)
    tree["parameters"] = dict(artifact.key.parameters)
    tree["arch"] = artifact.key.target.arch
    tree["toolchain"] = dict(artifact.toolchain)
    tree["multiples"] = dict(artifact.multiples)
    tree["limits"] = {name: [low, high] for name, low, high in artifact.limits}
    return tree


def read(path: Path) -> Manifest:
    """Read a manifest file.

    Raises:
        ManifestError: the file is missing, too large, not JSON, of another major version, or a
            field is not what the format says; the message names the file and the field.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SIZE_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(raw) > MAX_SIZE_BYTES:
        raise ManifestError(f"{path}: is over {MAX_SIZE_BYTES} bytes, must be at most that")
    return parse(raw, where=str(path))


def parse(raw: bytes | str, *, where: str) -> Manifest:
    """Read a manifest's JSON text; ``where`` names it in errors."""
    try:
        tree = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{where}: is not readable JSON: {error}") from error
    reader = _Reader(tree, where)
    version = reader.integers("schema_version")
    if len(version) != 2:
        raise ManifestError(f"{where}: schema_version: is {version}, must be [major, minor]")
    if version[0] != SCHEMA_VERSION[0]:
        raise ManifestError(
            f"{where}: schema_version: is {version[0]}.{version[1]}, "
            f"must be {SCHEMA_VERSION[0]}.x for this release\n"
            "hint: install a tilewheel release that reads this manifest"
        )
    artifacts = tuple(_artifact(item) for item in reader.items("artifacts"))
    keys = [str(artifact.key) for artifact in artifacts]
    if len(set(keys)) != len(keys):
        raise ManifestError(f"{where}: artifacts: has a key twice, must be unique")
    return Manifest(
        schema_version=(version[0], version[1]),
        tilewheel_version=reader.text("tilewheel_version"),
        runtime_abi=reader.integer("runtime_abi"),
        backend=reader.text("backend"),
        source_commit=reader.optional_text("source_commit"),
        source_dirty=reader.optional_flag("source_dirty"),
        artifacts=artifacts,
        libraries=tuple(_library(item) for item in reader.items("libraries")),
    )


def _library(reader: _Reader) -> Library:
    return Library(
        path=_relative_path(reader),
        sha256=_sha256(reader),
        size_bytes=reader.integer("size_bytes"),
    )


def _sha256(reader: _Reader) -> str:
    sha256 = reader.text("sha256")
    if _SHA256.fullmatch(sha256) is None:
        raise ManifestError(f"{reader.where}.sha256: is {sha256!r}, must be 64 hex digits")
    return sha256


def _entry(reader: _Reader) -> str:
    entry = reader.text("entry")
    if _ENTRY.fullmatch(entry) is None:
        raise ManifestError(
            f"{reader.where}.entry: is {entry!r}, must be __tvm_ffi_ and a snake_case name"
        )
    return entry


def _multiples(reader: _Reader) -> tuple[tuple[str, int], ...]:
    """Return (name, divisor) of parameters; selection divides by it."""
    found = tuple((name, reader.integer(name)) for name in sorted(reader.tree))
    for name, divisor in found:
        if divisor < 1:
            raise ManifestError(f"{reader.where}.{name}: is {divisor}, must be at least 1")
    return found


def _artifact(reader: _Reader) -> Artifact:
    try:
        key = Key.parse(reader.text("key"))
    except KeyFormatError as error:
        raise ManifestError(f"{reader.where}.key: {error}") from error
    limits = reader.mapping("limits")
    bounds = []
    for name in sorted(limits):
        low_high = _Reader(limits, f"{reader.where}.limits").integers(name)
        if len(low_high) != 2:
            raise ManifestError(f"{reader.where}.limits.{name}: must be [lowest, highest]")
        bounds.append((name, low_high[0], low_high[1]))
    resources = reader.child("resources")
    toolchain = reader.mapping("toolchain")
    return Artifact(
        key=key,
        path=_relative_path(reader),
        sha256=_sha256(reader),
        size_bytes=reader.integer("size_bytes"),
        entry=_entry(reader),
        arguments=tuple(_argument(item) for item in reader.items("arguments")),
        launch=_launch(reader.child("launch")),
        limits=tuple(bounds),
        resources=Resources(
            registers=resources.optional_integer("registers"),
            spill_bytes=resources.optional_integer("spill_bytes"),
            static_shared_bytes=resources.optional_integer("static_shared_bytes"),
            dropped_buffer_versions=resources.optional_integer("dropped_buffer_versions"),
        ),
        minimum_driver=reader.text("minimum_driver"),
        toolchain=tuple(sorted((name, str(value)) for name, value in toolchain.items())),
        fingerprint=reader.text("fingerprint"),
        profiles=reader.texts("profiles"),
        verification=reader.text("verification"),
        multiples=_multiples(reader.child("multiples")),
    )


def _argument(reader: _Reader) -> Argument:
    kind = reader.text("kind")
    if kind not in ("tensor", "scalar", "device"):
        raise ManifestError(f"{reader.where}.kind: is {kind!r}, must be tensor, scalar or device")
    shape = reader.sequence("shape")
    if not all(isinstance(size, (int, str)) and not isinstance(size, bool) for size in shape):
        raise ManifestError(f"{reader.where}.shape: is {shape}, must hold integers and names")
    return Argument(
        name=reader.text("name"),
        kind=kind,
        dtype=reader.text("dtype"),
        role=reader.text("role"),
        shape=tuple(shape),
    )


def _launch(reader: _Reader) -> Launch:
    return Launch(
        kernel=reader.text("kernel"),
        parameters=reader.texts("parameters"),
        grid=reader.texts("grid"),
        block=reader.integers("block"),
        dynamic_shared_bytes=reader.integer("dynamic_shared_bytes"),
        pdl=reader.flag("pdl"),
    )


def _relative_path(reader: _Reader) -> str:
    """Return the artifact's path, which must stay below the manifest's directory."""
    text = reader.text("path")
    path = PurePosixPath(text)
    plain = re.fullmatch(r"[A-Za-z0-9_.=/-]+", text) is not None
    if not plain or path.is_absolute() or ".." in path.parts or str(path) != text:
        raise ManifestError(
            f"{reader.where}.path: is {text!r}, must be a relative path below the manifest "
            "without .., made of [A-Za-z0-9_.=/-]"
        )
    return text


class _Reader:
    """Typed access to one JSON object; every error names the field's path."""

    def __init__(self, tree: object, where: str) -> None:
        if not isinstance(tree, dict):
            raise ManifestError(f"{where}: is {_type_name(tree)}, must be an object")
        self.tree: Mapping[str, Any] = tree
        self.where = where

    def _get(self, name: str, kinds: tuple[type, ...], expected: str) -> Any:
        if name not in self.tree:
            raise ManifestError(f"{self.where}.{name}: is missing, must be {expected}")
        value = self.tree[name]
        # bool is an int to Python, never to this format.
        wrong_bool = isinstance(value, bool) and bool not in kinds
        if wrong_bool or not isinstance(value, kinds):
            raise ManifestError(f"{self.where}.{name}: is {_type_name(value)}, must be {expected}")
        return value

    def text(self, name: str) -> str:
        return str(self._get(name, (str,), "a string"))

    def integer(self, name: str) -> int:
        return int(self._get(name, (int,), "an integer"))

    def flag(self, name: str) -> bool:
        return bool(self._get(name, (bool,), "true or false"))

    def optional_text(self, name: str) -> str | None:
        return None if self.tree.get(name) is None else self.text(name)

    def optional_integer(self, name: str) -> int | None:
        return None if self.tree.get(name) is None else self.integer(name)

    def optional_flag(self, name: str) -> bool | None:
        return None if self.tree.get(name) is None else self.flag(name)

    def sequence(self, name: str) -> list[Any]:
        return list(self._get(name, (list,), "an array"))

    def mapping(self, name: str) -> dict[str, Any]:
        return dict(self._get(name, (dict,), "an object"))

    def integers(self, name: str) -> tuple[int, ...]:
        values = self.sequence(name)
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            raise ManifestError(f"{self.where}.{name}: is {values}, must hold integers")
        return tuple(values)

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.sequence(name)
        if not all(isinstance(value, str) for value in values):
            raise ManifestError(f"{self.where}.{name}: is {values}, must hold strings")
        return tuple(values)

    def child(self, name: str) -> _Reader:
        return _Reader(self.mapping(name), f"{self.where}.{name}")

    def items(self, name: str) -> list[_Reader]:
        values = self.sequence(name)
        return [_Reader(value, f"{self.where}.{name}[{i}]") for i, value in enumerate(values)]


def _type_name(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")
