"""A bill of materials for each wheel, CycloneDX 1.6 as JSON: python wheels/sbom.py dist

Writes `<wheel>.cdx.json` beside each wheel: every file with its SHA-256, what each artifact is and
was built from, the tools that made them, and what the wheel needs at run time. It is a function of
the wheel alone: the same wheel gives the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import uuid
import zipfile
from collections.abc import Iterable, Sequence
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tilewheel.errors import ManifestError
from tilewheel.manifest import FILE_NAME, Artifact, Library, Manifest, parse

SUFFIX = ".cdx.json"

# Of an artifact's toolchain; the others are tools and packages with a version.
_SETTINGS = ("flags", "machine")
# Tools that are no package of PyPI.
_NOT_ON_PYPI = frozenset({"bisheng", "ld.lld"})

Tree = dict[str, Any]


class SbomError(ValueError):
    """A wheel that cannot be described: damaged, or not what its own manifest says."""


def main(arguments: Sequence[str]) -> int:
    """Write the bill of every wheel that is named, or that lies in a folder that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, help="wheels, or their folder")
    options = parser.parse_args(arguments)
    wheels = [
        wheel
        for path in options.paths
        for wheel in (sorted(path.glob("*.whl")) if path.is_dir() else [path])
    ]
    if not wheels:
        print("no wheel: run `make wheel`", file=sys.stderr)
        return 3
    code = 0
    for wheel in wheels:
        try:
            text = bill(wheel)
        except SbomError as error:
            print(error, file=sys.stderr)
            code = 7
            continue
        output = wheel.with_name(wheel.name + SUFFIX)
        output.write_text(text)
        print(output)
    return code


def bill(wheel: Path) -> str:
    """Return the bill of materials of a wheel file.

    Raises:
        SbomError: it is no wheel, or a file of it is not the one that its manifest lists.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            contents = {
                item.filename: archive.read(item)
                for item in archive.infolist()
                if not item.is_dir()
            }
    except Exception as error:  # a damaged archive makes zipfile and its decoders raise anything
        raise SbomError(
            f"{wheel}: cannot be read as a wheel: {type(error).__name__}: {error}"
        ) from error
    metadata = _metadata(wheel, contents)
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    manifests = _manifests(wheel, contents, hashes)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    own = _own(wheel, metadata, digest)
    needs = _needs(wheel, metadata)
    files = _files(hashes, manifests)
    tree = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, 'sha256:' + digest)}",
        "version": 1,
        "metadata": {"lifecycles": [{"phase": "build"}], "component": own},
        "components": [*files, *needs, *_tools(manifests.values())],
        "dependencies": [
            {
                "ref": own["bom-ref"],
                "dependsOn": [
                    item["bom-ref"] for item in (*files, *needs) if item["scope"] == "required"
                ],
            }
        ],
    }
    return json.dumps(tree, indent=1, sort_keys=True) + "\n"


def _metadata(wheel: Path, contents: dict[str, bytes]) -> Message:
    found = [name for name in contents if name.endswith(".dist-info/METADATA")]
    if len(found) != 1:
        raise SbomError(f"{wheel}: has {len(found)} files METADATA, must have one")
    metadata = BytesParser().parsebytes(contents[found[0]])
    missing = [field for field in ("Name", "Version") if not metadata.get(field)]
    if missing:
        raise SbomError(f"{wheel}: METADATA lacks {' and '.join(missing)}, must have both")
    return metadata


def _manifests(
    wheel: Path, contents: dict[str, bytes], hashes: dict[str, str]
) -> dict[str, Manifest]:
    """Return the manifests by the folder that they lie in; every file that they list is checked."""
    found = {}
    for name in sorted(contents):
        folder, _, last = name.rpartition("/")
        if last != FILE_NAME:
            continue
        try:
            manifest = parse(contents[name], where=f"{wheel}: {name}")
        except ManifestError as error:
            raise SbomError(str(error)) from error
        files: tuple[Artifact | Library, ...] = (*manifest.artifacts, *manifest.libraries)
        for item in files:
            path = f"{folder}/{item.path}"
            if path not in hashes:
                raise SbomError(f"{wheel}: lacks {path}, must hold what {name} lists")
            if hashes[path] != item.sha256:
                raise SbomError(
                    f"{wheel}: {path}: sha256 is {hashes[path]}, must be {item.sha256} as {name} "
                    "lists"
                )
        found[folder] = manifest
    return found


def _own(wheel: Path, metadata: Message, digest: str) -> Tree:
    name, version = str(metadata["Name"]), str(metadata["Version"])
    component = {
        "type": "library",
        "bom-ref": "wheel",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{canonicalize_name(name)}@{version}?file_name={wheel.name}",
        "hashes": _sha256(digest),
    }
    if metadata.get("Summary"):
        component["description"] = str(metadata["Summary"])
    if metadata.get("License-Expression"):
        component["licenses"] = [{"expression": str(metadata["License-Expression"])}]
    return component


def _files(hashes: dict[str, str], manifests: dict[str, Manifest]) -> list[Tree]:
    artifacts = {
        f"{folder}/{artifact.path}": (manifest, artifact)
        for folder, manifest in manifests.items()
        for artifact in manifest.artifacts
    }
    components = []
    for name in sorted(hashes):
        component: Tree = {
            "type": "file",
            "bom-ref": f"file:{name}",
            "name": name,
            "scope": "required",
            "hashes": _sha256(hashes[name]),
        }
        if name in artifacts:
            component["properties"] = _properties(*artifacts[name])
        components.append(component)
    return components


def _properties(manifest: Manifest, artifact: Artifact) -> list[dict[str, str]]:
    values = {
        "key": str(artifact.key),
        "arch": artifact.key.target.arch,
        "fingerprint": artifact.fingerprint,
        "verification": artifact.verification,
        "minimum_driver": artifact.minimum_driver,
        "source_commit": manifest.source_commit or "",
        **{name: value for name, value in artifact.toolchain if name in _SETTINGS},
    }
    return [
        {"name": f"tilewheel:{name}", "value": value}
        for name, value in sorted(values.items())
        if value
    ]


def _needs(wheel: Path, metadata: Message) -> list[Tree]:
    """Return what the wheel needs at run time; what only its extras need is optional."""
    components = []
    for text in metadata.get_all("Requires-Dist") or []:
        try:
            requirement = Requirement(str(text))
        except InvalidRequirement as error:
            raise SbomError(f"{wheel}: METADATA: Requires-Dist: {error}") from error
        is_extra = requirement.marker is not None and "extra" in str(requirement.marker)
        name = canonicalize_name(requirement.name)
        components.append(
            {
                "type": "library",
                "bom-ref": f"requirement:{text}",
                "name": name,
                "scope": "optional" if is_extra else "required",
                "purl": f"pkg:pypi/{name}",
                "properties": [{"name": "tilewheel:requirement", "value": str(requirement)}],
            }
        )
    return sorted(components, key=lambda component: str(component["bom-ref"]))


def _tools(manifests: Iterable[Manifest]) -> list[Tree]:
    """Return the tools that made the artifacts; nothing of them is needed at run time."""
    tools = {
        (name, version)
        for manifest in manifests
        for artifact in manifest.artifacts
        for name, version in artifact.toolchain
        if name not in _SETTINGS
    }
    components = []
    for name, version in sorted(tools):
        component: Tree = {
            "type": "application",
            "bom-ref": f"tool:{name}@{version}",
            "name": name,
            "version": version,
            "scope": "excluded",
        }
        if name not in _NOT_ON_PYPI:
            component["purl"] = f"pkg:pypi/{canonicalize_name(name)}@{version}"
        components.append(component)
    return components


def _sha256(digest: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest}]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
