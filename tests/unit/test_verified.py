"""The record of artifacts that have run on a device, by the hash of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewheel_build.errors import ArtifactError
from tilewheel_build.verified import verification_status


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
