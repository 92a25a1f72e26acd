"""An operator is whole: what nothing else would miss."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted((ROOT / "specs").glob("*/*.yaml"))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_operator_has_a_self_test(spec: Path) -> None:
    # The self-test itself passes over an operator that has none, as one of another release may.
    assert find_spec(f"tilewheel.selftest_cases.{spec.stem}") is not None


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_operator_is_in_the_table_of_the_readme(spec: Path) -> None:
    assert f"({spec.relative_to(ROOT).as_posix()})" in (ROOT / "README.md").read_text()
