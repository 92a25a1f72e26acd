"""The manifest's reader and writer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewheel.errors import ManifestError
from tilewheel.manifest import Argument, Library, dump, parse, read

KEY = "topk_gate-num_experts=256-num_topk=8-cuda-sm_90a"
OTHER = "topk_gate-num_experts=64-num_topk=6-cuda-sm_90a"


@pytest.fixture
def tree(artifact: Callable[..., Any], manifest: Callable[..., Any]) -> dict[str, Any]:
    described = artifact(
        KEY,
        arguments=(Argument(name="scores", kind="tensor", dtype="float32", shape=("t", 256)),),
        limits=(("num_experts", 1, 1024),),
    )
    return dict(json.loads(dump(manifest(described))))


def rejection(tree: dict[str, Any]) -> str:
    with pytest.raises(ManifestError) as caught:
        parse(json.dumps(tree), where="m.json")
    return str(caught.value)


def test_read_is_the_inverse_of_dump(artifact, manifest):
    described = manifest(
        artifact(OTHER),
        artifact(KEY, limits=(("num_experts", 1, 1024),)),
        libraries=(Library(path="lib/libx.so", sha256="0" * 64, size_bytes=1),),
    )
    assert parse(dump(described), where="m.json") == described


def test_dump_sorts_artifacts_by_key(artifact, manifest):
    forward = dump(manifest(artifact(OTHER), artifact(KEY)))
    assert dump(manifest(artifact(KEY), artifact(OTHER))) == forward
    assert forward.index(OTHER) < forward.index(KEY)


def test_unknown_fields_are_ignored(tree):
    expected = parse(json.dumps(tree), where="m.json")
    tree["added_later"] = 1
    tree["artifacts"][0]["added_later"] = {}
    assert parse(json.dumps(tree), where="m.json") == expected


def test_newer_minor_version_is_read(tree):
    tree["schema_version"] = [1, 9]
    assert parse(json.dumps(tree), where="m.json").schema_version == (1, 9)


def test_another_major_version_is_refused(tree):
    tree["schema_version"] = [2, 0]
    assert rejection(tree) == (
        "m.json: schema_version: is 2.0, must be 1.x for this release\n"
        "hint: install a tilewheel release that reads this manifest"
    )


def test_version_of_another_length_is_refused(tree):
    tree["schema_version"] = [1]
    assert rejection(tree) == "m.json: schema_version: is (1,), must be [major, minor]"


BAD_PATHS = [
    "/etc/a.so",
    "//a.so",
    "..",
    "../a.so",
    "a/../../b.so",
    "a/..",
    "a//b.so",
    "./a",
    "a b",
    "~/a.so",
    "..\\a.so",
    "C:/a.so",
    "file:///a.so",
    "a\0.so",
    "a\n.so",
    "\u2024\u2024/a.so",
    "",
]


@pytest.mark.parametrize("path", BAD_PATHS)
@pytest.mark.parametrize("field", ["artifacts", "libraries"])
def test_path_that_could_leave_the_directory_is_refused(tree, field, path):
    tree["libraries"] = [{"path": "lib/libx.so", "sha256": "0" * 64, "size_bytes": 1}]
    tree[field][0]["path"] = path
    assert rejection(tree) == (
        f"m.json.{field}[0].path: is {path!r}, must be a relative path below the manifest "
        "without .., made of [A-Za-z0-9_.=/-]"
    )


def test_missing_field_is_named(tree):
    del tree["artifacts"][0]["size_bytes"]
    assert rejection(tree) == "m.json.artifacts[0].size_bytes: is missing, must be an integer"


def test_field_of_a_wrong_type_is_named(tree):
    tree["artifacts"][0]["launch"]["dynamic_shared_bytes"] = True
    assert rejection(tree) == (
        "m.json.artifacts[0].launch.dynamic_shared_bytes: is a boolean, must be an integer"
    )


def test_list_with_a_wrong_element_is_named(tree):
    tree["artifacts"][0]["profiles"] = ["dev", 1]
    assert rejection(tree) == "m.json.artifacts[0].profiles: is ['dev', 1], must hold strings"
    tree["artifacts"][0]["profiles"] = []
    tree["artifacts"][0]["launch"]["block"] = ["x"]
    assert rejection(tree) == "m.json.artifacts[0].launch.block: is ['x'], must hold integers"


def test_wrong_sha256_is_refused(tree):
    tree["artifacts"][0]["sha256"] = "ab"
    assert rejection(tree) == "m.json.artifacts[0].sha256: is 'ab', must be 64 hex digits"


def test_wrong_key_is_refused(tree):
    tree["artifacts"][0]["key"] = "topk_gate"
    assert rejection(tree).startswith("m.json.artifacts[0].key: key: is 'topk_gate'")


def test_key_twice_is_refused(tree):
    tree["artifacts"] *= 2
    assert rejection(tree) == "m.json: artifacts: has a key twice, must be unique"


def test_wrong_argument_is_refused(tree):
    argument = tree["artifacts"][0]["arguments"][0]
    argument["shape"] = [1.5]
    assert rejection(tree) == (
        "m.json.artifacts[0].arguments[0].shape: is [1.5], must hold integers and names"
    )
    argument["kind"] = "other"
    assert rejection(tree) == (
        "m.json.artifacts[0].arguments[0].kind: is 'other', must be tensor, scalar or device"
    )


def test_truth_value_in_a_shape_is_refused(tree):
    tree["artifacts"][0]["arguments"][0]["shape"] = [True]
    assert rejection(tree) == (
        "m.json.artifacts[0].arguments[0].shape: is [True], must hold integers and names"
    )


@pytest.mark.parametrize("entry", ["", "__class__", "topk_gate", "__tvm_ffi_", "__tvm_ffi_\ud800"])
def test_entry_that_is_no_function_of_an_artifact_is_refused(tree, entry):
    tree["artifacts"][0]["entry"] = entry
    assert rejection(tree) == (
        f"m.json.artifacts[0].entry: is {entry!r}, must be __tvm_ffi_ and a snake_case name"
    )


@pytest.mark.parametrize("divisor", [0, -64])
def test_divisor_below_1_is_refused(tree, divisor):
    tree["artifacts"][0]["multiples"] = {"hidden": divisor}
    assert rejection(tree) == (
        f"m.json.artifacts[0].multiples.hidden: is {divisor}, must be at least 1"
    )


def test_key_with_an_integer_of_thousands_of_digits_is_refused(tree):
    tree["artifacts"][0]["key"] = f"op-n={'9' * 5000}-cuda-sm_90a"
    assert rejection(tree) == (
        "m.json.artifacts[0].key: value: is 5000 characters, must be at most 200"
    )


def test_wrong_limit_is_refused(tree):
    tree["artifacts"][0]["limits"]["num_experts"] = [1]
    assert rejection(tree) == ("m.json.artifacts[0].limits.num_experts: must be [lowest, highest]")


def test_text_that_is_no_json_is_refused():
    with pytest.raises(ManifestError, match=r"^m\.json: is not readable JSON: "):
        parse("{", where="m.json")
    with pytest.raises(ManifestError, match=r"^m\.json: is an array, must be an object"):
        parse("[]", where="m.json")
    with pytest.raises(ManifestError, match=r"^m\.json: is not readable JSON: "):
        parse("[" * 100_000, where="m.json")


def test_json_nested_deeply_in_an_unknown_field_is_refused(tree):
    depth = 100_000
    nested = json.dumps(tree)[:-1] + ', "later": ' + "[" * depth + "]" * depth + "}"
    with pytest.raises(ManifestError, match=r"^m\.json: is not readable JSON: "):
        parse(nested, where="m.json")


def test_integer_of_thousands_of_digits_is_refused(tree):
    text = json.dumps(tree).replace('"size_bytes": 1', f'"size_bytes": {"9" * 5000}')
    with pytest.raises(ManifestError, match=r"^m\.json: is not readable JSON: "):
        parse(text, where="m.json")


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(ManifestError, match=r"^m\.json: is not readable JSON: "):
        parse(b"\xff\xfe{", where="m.json")


def test_missing_file_is_reported(tmp_path: Path):
    with pytest.raises(ManifestError, match=r"manifest\.json: cannot be read: No such file"):
        read(tmp_path / "manifest.json")


def test_too_large_file_is_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("tilewheel.manifest.MAX_SIZE_BYTES", 3)
    path = tmp_path / "manifest.json"
    path.write_text("1234")
    with pytest.raises(ManifestError, match=r"is over 3 bytes, must be at most that"):
        read(path)
