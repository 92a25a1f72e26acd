"""The record of artifacts that have run on a device, by the hash of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilewheel.manifest import dump
from tilewheel_build.errors import ArtifactError
from tilewheel_build.verified import record, verification_status


def test_without_a_record_nothing_is_verified(tmp_path: Path) -> None:
    assert verification_status(tmp_path, "a" * 64) == "none"


def test_recorded_hash_has_its_status_and_any_other_has_none(tmp_path: Path) -> None:
    (tmp_path / "verified.json").write_text('{"%s": "device:NVIDIA H200"}' % ("a" * 64))
    assert verification_status(tmp_path, "a" * 64) == "device:NVIDIA H200"
    assert verification_status(tmp_path, "b" * 64) == "none"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "verified.json: is a list, must be an object"),
        ("{", "verified.json: is not readable JSON: Expecting property name enclosed in double "),
    ],
)
def test_unreadable_record_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "verified.json").write_text(text)
    with pytest.raises(ArtifactError) as caught:
        verification_status(tmp_path, "a" * 64)
    assert str(caught.value).startswith(message)


def test_self_test_is_recorded_by_the_hash_of_each_exact_artifact(
    tmp_path: Path, manifest: Any, artifact: Any
) -> None:
    exact = artifact("scale-cuda-sm_90a", sha256="a" * 64)
    failed = artifact("other-cuda-sm_90a", sha256="b" * 64)
    (tmp_path / "manifest.json").write_text(dump(manifest(exact, failed)))
    rows = [
        {"key": "scale-cuda-sm_90a", "status": "exact"},
        {"key": "other-cuda-sm_90a", "status": "mismatch"},
    ]
    (tmp_path / "selftest.json").write_text(json.dumps({"rows": rows}))
    (tmp_path / "verified.json").write_text(
        json.dumps({"b" * 64: "simulator", "c" * 64: "simulator"})
    )
    count = record(
        tmp_path,
        manifest=tmp_path / "manifest.json",
        selftest=tmp_path / "selftest.json",
        status="device:H200",
    )
    assert count == 1
    assert json.loads((tmp_path / "verified.json").read_text()) == {
        "a" * 64: "device:H200",
        "c" * 64: "simulator",
    }
