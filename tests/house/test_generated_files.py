"""What is generated is current, and the schema for editors accepts what the parser accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from tilewheel.key import is_name
from tilewheel_build.generate import generated_files, main, stale_files
from tilewheel_build.schema import schema_json, spec_markdown
from tilewheel_build.spec_fields import NAME_PATTERN

ROOT = Path(__file__).resolve().parents[2]
CAST = ROOT / "tests/unit/data/specs/quant/cast.yaml"
SPECS = [*sorted((ROOT / "specs").glob("*/*.yaml")), CAST]
VALIDATOR = jsonschema.Draft202012Validator(json.loads(schema_json()))


def test_generated_files_are_current():
    assert stale_files(ROOT) == (), "run: python -m tilewheel_build.generate"


def test_generation_writes_what_is_stale_and_then_nothing(tmp_path, capsys):
    for path in ("specs/moe/topk_gate.yaml", "tests/golden/gone.txt"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes((ROOT / "specs/moe/topk_gate.yaml").read_bytes())
    assert main(["--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "wrote docs/spec.md",
        "wrote specs/schema.json",
        "removed tests/golden/gone.txt",
        "wrote tests/golden/topk_gate.txt",
    ]
    assert main(["--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""


def test_generation_reports_a_broken_spec_and_writes_nothing(tmp_path, capsys):
    (tmp_path / "specs/moe").mkdir(parents=True)
    (tmp_path / "specs/moe/topk_gate.yaml").write_text("", encoding="utf-8")
    assert main(["--root", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "specs/moe/topk_gate.yaml: is empty, must be a mapping\n"
    assert not (tmp_path / "docs").exists()


def test_generated_text_does_not_depend_on_the_place():
    assert str(ROOT) not in "".join(generated_files(ROOT).values())


@pytest.mark.parametrize("path", SPECS, ids=[path.stem for path in SPECS])
def test_the_schema_accepts_every_spec(path):
    jsonschema.Draft202012Validator.check_schema(VALIDATOR.schema)
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert [error.message for error in VALIDATOR.iter_errors(tree)] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("source: original", "sources: original"),
        ("type: bool", "type: boolean"),
        ("minimum: 64, maximum: 8192", "minimum: 64"),
        ("choices: [32, 128]", "choices: []"),
        ("role: in\n", "role: input\n"),
        ("alignment: 2", "alignment: 3"),
        ("  release: all\n", ""),
        ("archs: [dav_3510]", "archs: [sm_90a]"),
        ("kernel: quant/cast_cuda.py", "kernel: ../cast_cuda.py"),
        ("values: [any, 64], ", ""),
        ("  cuda:\n", "  ascend-sim:\n"),
    ],
)
def test_the_schema_refuses_what_an_editor_can_see(old, new):
    text = CAST.read_text(encoding="utf-8")
    assert old in text
    assert not VALIDATOR.is_valid(yaml.safe_load(text.replace(old, new, 1)))


def test_the_page_shows_real_errors_and_every_field():
    page = spec_markdown((ROOT / "specs/moe/topk_gate.yaml").read_text(encoding="utf-8"))
    assert "specs/moe/topk_gate.yaml: sumary: is an unknown field, must be one of summary" in page
    assert "| `alignment` | a power of two from 1 to 128 | required |" in page
    assert "| `values` | a non-empty list of values | required |" in page


@pytest.mark.parametrize(
    "name", ["a", "a1_b2", "num_topk", "A", "1a", "a__b", "_a", "a_", "a-b", ""]
)
def test_the_name_pattern_of_the_schema_is_that_of_keys(name):
    assert (re.search(NAME_PATTERN, name) is not None) == is_name(name)
