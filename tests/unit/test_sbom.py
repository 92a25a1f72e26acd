"""The bill of materials of a wheel: what it holds, that it is valid, and what it refuses."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tilewheel.manifest import Library, dump

PATH = Path(__file__).parents[2] / "wheels" / "sbom.py"
KEY = "topk_gate-num_experts=256-num_topk=8-cuda-sm_90a"
NAME = "tilewheel_cu13-0.1.0-py3-none-manylinux_2_28_x86_64.whl"
METADATA = """\
Metadata-Version: 2.4
Name: tilewheel-cu13
Version: 0.1.0
Summary: Compiled kernels
License-Expression: Apache-2.0
Requires-Dist: tilewheel==0.1.*
Requires-Dist: apache-tvm-ffi<0.2,>=0.1
Requires-Dist: rich; extra == "pretty"
"""
CONTENT = b"an artifact"
LIBRARY = Library(path="libx.so", sha256=hashlib.sha256(b"lib").hexdigest(), size_bytes=3)
TOOLCHAIN = (
    ("flags", "-O3"),
    ("machine", "x86_64"),
    ("nvidia-cuda-nvcc", "13.0.88"),
    ("tilelang", "0.1.15"),
)


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def wheel(tmp_path: Path, artifact: Any, manifest: Any) -> Callable[..., Path]:
    """Return the function that makes a wheel; it takes files to replace, None to leave one out."""

    def make(**changes: bytes | str | None) -> Path:
        described = artifact(
            KEY, sha256=hashlib.sha256(CONTENT).hexdigest(), size_bytes=11, toolchain=TOOLCHAIN
        )
        text = dump(
            dataclasses.replace(manifest(described), libraries=(LIBRARY,), source_commit="abc")
        )
        files: dict[str, bytes | str | None] = {
            "tilewheel_cu13/__init__.py": "",
            "tilewheel_cu13/manifest.json": text,
            "tilewheel_cu13/libx.so": b"lib",
            f"tilewheel_cu13/sm_90a/{KEY}.so": CONTENT,
            "tilewheel_cu13-0.1.0.dist-info/METADATA": METADATA,
        }
        names = {name.rpartition("/")[2].partition(".")[0].lower(): name for name in files}
        files |= {names[short]: content for short, content in changes.items()}
        path = tmp_path / NAME
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                if content is not None:
                    archive.writestr(zipfile.ZipInfo(name), content)
        return path

    return make


@pytest.fixture
def tree(sbom: ModuleType, wheel: Callable[..., Path]) -> dict[str, Any]:
    return dict(json.loads(sbom.bill(wheel())))


def component(tree: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (item for item in tree["components"] if item["name"] == name)
    return dict(found)


def test_bill_is_valid_cyclonedx_1_6(sbom, wheel):
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(sbom.bill(wheel())) is None


def test_validator_of_this_test_finds_faults(sbom, wheel):
    text = sbom.bill(wheel()).replace('"type": "file"', '"type": "fail"')
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is not None


def test_same_wheel_gives_the_same_bytes_wherever_it_is(sbom, wheel, tmp_path):
    first = wheel()
    elsewhere = tmp_path / "elsewhere" / NAME
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(first.read_bytes())
    assert sbom.bill(elsewhere) == sbom.bill(first)
    assert str(tmp_path) not in sbom.bill(first)


def test_other_wheel_has_another_serial_number(sbom, wheel):
    first = json.loads(sbom.bill(wheel()))["serialNumber"]
    assert json.loads(sbom.bill(wheel(__init__="# changed")))["serialNumber"] != first


def test_bill_names_the_wheel(tree, tmp_path):
    own = tree["metadata"]["component"]
    assert (own["name"], own["version"]) == ("tilewheel-cu13", "0.1.0")
    assert own["purl"] == f"pkg:pypi/tilewheel-cu13@0.1.0?file_name={NAME}"
    assert own["licenses"] == [{"expression": "Apache-2.0"}]
    digest = hashlib.sha256((tmp_path / NAME).read_bytes()).hexdigest()
    assert own["hashes"] == [{"alg": "SHA-256", "content": digest}]


def test_bill_holds_every_file_with_its_hash(tree):
    files = [item["name"] for item in tree["components"] if item["type"] == "file"]
    assert files == [
        "tilewheel_cu13-0.1.0.dist-info/METADATA",
        "tilewheel_cu13/__init__.py",
        "tilewheel_cu13/libx.so",
        "tilewheel_cu13/manifest.json",
        f"tilewheel_cu13/sm_90a/{KEY}.so",
    ]
    found = component(tree, f"tilewheel_cu13/sm_90a/{KEY}.so")
    assert found["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(CONTENT).hexdigest()}]


def test_artifact_says_what_it_is_and_was_built_from(tree):
    properties = component(tree, f"tilewheel_cu13/sm_90a/{KEY}.so")["properties"]
    assert {item["name"]: item["value"] for item in properties} == {
        "tilewheel:arch": "sm_90a",
        "tilewheel:fingerprint": "f",
        "tilewheel:flags": "-O3",
        "tilewheel:key": KEY,
        "tilewheel:machine": "x86_64",
        "tilewheel:minimum_driver": "580",
        "tilewheel:source_commit": "abc",
        "tilewheel:verification": "none",
    }


def test_tools_are_listed_as_not_needed_at_run_time(tree):
    tools = [item for item in tree["components"] if item["type"] == "application"]
    assert [(item["purl"], item["scope"]) for item in tools] == [
        ("pkg:pypi/nvidia-cuda-nvcc@13.0.88", "excluded"),
        ("pkg:pypi/tilelang@0.1.15", "excluded"),
    ]


def test_run_time_dependencies_are_required_and_those_of_extras_optional(tree):
    found = [item for item in tree["components"] if item["type"] == "library"]
    assert [(item["name"], item["scope"]) for item in found] == [
        ("apache-tvm-ffi", "required"),
        ("rich", "optional"),
        ("tilewheel", "required"),
    ]
    (dependencies,) = tree["dependencies"]
    assert "requirement:tilewheel==0.1.*" in dependencies["dependsOn"]
    assert not any("rich" in ref or "tool:" in ref for ref in dependencies["dependsOn"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata": None}, "has 0 files METADATA, must have one"),
        ({"metadata": "Name: x\n"}, "METADATA lacks Version, must have both"),
        ({"manifest": "{"}, "tilewheel_cu13/manifest.json: is not readable JSON: "),
        ({"libx": None}, "lacks tilewheel_cu13/libx.so, must hold what tilewheel_cu13/manifest"),
        ({"libx": b"lix"}, "tilewheel_cu13/libx.so: sha256 is "),
        (
            {"metadata": "Name: x\nVersion: 1\nRequires-Dist: a b\n"},
            "METADATA: Requires-Dist: ",
        ),
    ],
)
def test_wheel_that_is_not_whole_is_refused(sbom, wheel, capsys, changes, message):
    path = wheel(**changes)
    assert sbom.main([str(path)]) == 7
    assert capsys.readouterr().err.startswith(f"{path}: {message}")
    assert not path.with_name(NAME + ".cdx.json").exists()


def test_file_that_is_no_wheel_is_refused(sbom, tmp_path, capsys):
    path = tmp_path / NAME
    path.write_text("no archive")
    assert sbom.main([str(path)]) == 7
    assert capsys.readouterr().err == (
        f"{path}: cannot be read as a wheel: BadZipFile: File is not a zip file\n"
    )


def test_damaged_wheel_is_refused_and_the_others_get_their_bills(sbom, wheel, tmp_path, capsys):
    whole = wheel()
    damaged = tmp_path / f"a-{NAME}"
    with zipfile.ZipFile(damaged, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"text " * 100)
    content = bytearray(damaged.read_bytes())
    content[31:36] = b"\xff" * 5  # the compressed data begins behind 30 bytes and the name
    damaged.write_bytes(content)
    assert sbom.main([str(tmp_path)]) == 7
    printed = capsys.readouterr()
    assert printed.err.startswith(f"{damaged}: cannot be read as a wheel: error: Error -3 ")
    assert printed.out == f"{whole}.cdx.json\n"


def test_bills_are_written_beside_the_wheels_of_a_folder(sbom, wheel, capsys):
    path = wheel()
    assert sbom.main([str(path.parent)]) == 0
    assert capsys.readouterr().out == f"{path}.cdx.json\n"
    assert path.with_name(NAME + ".cdx.json").read_text() == sbom.bill(path)


def test_folder_without_wheels_ends_with_3(sbom, tmp_path, capsys):
    assert sbom.main([str(tmp_path)]) == 3
    assert capsys.readouterr().err == "no wheel: run `make wheel`\n"
