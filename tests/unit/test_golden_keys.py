"""The keys that the specs yield are the committed ones: a changed key is a changed artifact."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewheel_build.generate import GOLDEN_FOLDER, golden_keys
from tilewheel_build.spec import OperatorSpec, load_specs

ROOT = Path(__file__).resolve().parents[2]
SPECS = load_specs(ROOT)


@pytest.mark.parametrize("spec", SPECS, ids=[spec.operator for spec in SPECS])
def test_a_spec_yields_exactly_its_golden_keys(spec: OperatorSpec):
    path = ROOT / GOLDEN_FOLDER / f"{spec.operator}.txt"
    golden = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    assert golden_keys(spec).splitlines() == golden, (
        f"{path.relative_to(ROOT)} differs; if the new keys are meant, "
        "run: python -m tilewheel_build.generate"
    )
