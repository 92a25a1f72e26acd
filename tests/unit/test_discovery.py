"""Discovery: manifests of installed packages and of TILEWHEEL_ARTIFACTS."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tilewheel import discovery
from tilewheel.discovery import Catalog, find
from tilewheel.manifest import dump

KEY = "topk_gate-num_experts=256-num_topk=8-cuda-sm_90a"
OTHER = "topk_gate-num_experts=64-num_topk=6-cuda-sm_90a"


def entry_point(value: str, name: str = "pkg") -> EntryPoint:
    return EntryPoint(name=name, value=value, group=discovery.GROUP)


def keys(found: Catalog) -> list[str]:
    return [str(entry.artifact.key) for entry in found.entries]


@pytest.fixture
def write(artifact, manifest):
    """Return the function that writes a manifest into a new directory."""

    def put(root: Path, key: str, **changes: object) -> Path:
        root.mkdir(parents=True)
        (root / "manifest.json").write_text(dump(manifest(artifact(key), **changes)))
        return root

    return put


def test_directory_with_a_manifest_is_an_overlay(tmp_path, write):
    root = write(tmp_path / "cuda", KEY)
    found = find((), {"TILEWHEEL_ARTIFACTS": str(root)})
    assert keys(found) == [KEY]
    assert found.problems == ()
    entry = found.entries[0]
    assert (entry.root, entry.source, entry.is_overlay) == (root, "TILEWHEEL_ARTIFACTS", True)
    assert entry.path == root / "sm_90a" / f"{KEY}.so"


def test_sub_directories_are_searched(tmp_path, write):
    write(tmp_path / "a", KEY)
    write(tmp_path / "b", OTHER)
    (tmp_path / "c").mkdir()
    assert keys(find((), {"TILEWHEEL_ARTIFACTS": str(tmp_path)})) == [KEY, OTHER]


def test_several_directories_are_taken_in_their_order(tmp_path, write):
    first, second = write(tmp_path / "z", OTHER), write(tmp_path / "a", KEY)
    assert keys(find((), {"TILEWHEEL_ARTIFACTS": f"{first}:{second}"})) == [OTHER, KEY]


def test_directory_named_twice_is_read_once(tmp_path, write):
    root = write(tmp_path / "cuda", KEY)
    assert keys(find((), {"TILEWHEEL_ARTIFACTS": f"{root}:{root}/../cuda"})) == [KEY]


def test_package_is_found_without_being_imported(tmp_path, write, monkeypatch):
    package = write(tmp_path / "site" / "tw_fake_cuda", KEY)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(package.parent)
    found = find((entry_point("tw_fake_cuda"),), {})
    assert keys(found) == [KEY]
    assert found.problems == ()
    assert not found.entries[0].is_overlay
    assert "tw_fake_cuda" not in sys.modules


def test_function_gives_directories(tmp_path, write, monkeypatch):
    root = write(tmp_path / "cuda", KEY)
    (tmp_path / "tw_fake_roots.py").write_text(f"def roots():\n    return [{str(root)!r}]\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert keys(find((entry_point("tw_fake_roots:roots"),), {})) == [KEY]


def test_overlays_come_before_packages(tmp_path, write, monkeypatch):
    package = write(tmp_path / "tw_fake_other", KEY)
    monkeypatch.syspath_prepend(package.parent)
    overlay = write(tmp_path / "overlay", OTHER)
    found = find((entry_point("tw_fake_other"),), {"TILEWHEEL_ARTIFACTS": str(overlay)})
    assert keys(found) == [OTHER, KEY]


def test_broken_manifest_does_not_hide_others(tmp_path, write):
    broken, whole = tmp_path / "broken", write(tmp_path / "whole", KEY)
    broken.mkdir()
    (broken / "manifest.json").write_text("{")
    found = find((), {"TILEWHEEL_ARTIFACTS": f"{broken}:{whole}"})
    assert keys(found) == [KEY]
    assert len(found.problems) == 1
    assert found.problems[0].startswith(
        f"TILEWHEEL_ARTIFACTS: {broken}/manifest.json: is not readable JSON: "
    )


def test_manifest_of_another_abi_is_a_problem(tmp_path, write):
    root = write(tmp_path / "cuda", KEY, runtime_abi=2)
    assert find((), {"TILEWHEEL_ARTIFACTS": str(root)}) == Catalog(
        entries=(),
        problems=(
            f"TILEWHEEL_ARTIFACTS: {root}/manifest.json: runtime_abi: is 2, "
            "must be 1 for this release\n"
            "hint: install or build artifacts of a release 0.1.x",
        ),
    )


def test_missing_directory_is_a_problem(tmp_path):
    assert find((), {"TILEWHEEL_ARTIFACTS": f"{tmp_path}/none"}).problems == (
        f"TILEWHEEL_ARTIFACTS: {tmp_path}/none cannot be read: No such file or directory",
    )


def test_unreadable_sub_directory_does_not_hide_others(tmp_path, write):
    write(tmp_path / "b", KEY)
    # Unreadable for root too, unlike what permissions forbid.
    (tmp_path / "a").symlink_to("x" * 300)
    found = find((), {"TILEWHEEL_ARTIFACTS": str(tmp_path)})
    assert keys(found) == [KEY]
    assert found.problems == (
        f"TILEWHEEL_ARTIFACTS: {tmp_path}/a cannot be read: File name too long",
    )


def test_directory_without_manifest_is_a_problem(tmp_path):
    assert find((), {"TILEWHEEL_ARTIFACTS": str(tmp_path)}).problems == (
        f"TILEWHEEL_ARTIFACTS: {tmp_path} holds no manifest.json, "
        "must hold one or have sub-directories that do",
    )


def test_entry_point_that_fails_is_a_problem():
    points = (entry_point("tw_no_such_package", "a"), entry_point("os:no_such_function", "b"))
    assert find(points, {}).problems == (
        "a: entry point 'tw_no_such_package' cannot be read: "
        "ModuleNotFoundError: no package 'tw_no_such_package'",
        "b: entry point 'os:no_such_function' cannot be read: "
        "AttributeError: module 'os' has no attribute 'no_such_function'",
    )


def test_catalogue_is_read_once_until_refresh(overlay, write):
    write(overlay / "a", KEY)
    assert keys(discovery.catalog()) == [KEY]
    write(overlay / "b", OTHER)
    assert keys(discovery.catalog()) == [KEY]
    discovery.refresh()
    assert keys(discovery.catalog()) == [KEY, OTHER]


def test_problem_is_warned_of_once(overlay, caplog):
    discovery.catalog()
    discovery.catalog()
    assert [record.getMessage() for record in caplog.records] == [
        f"TILEWHEEL_ARTIFACTS: {overlay} holds no manifest.json, "
        "must hold one or have sub-directories that do"
    ]
