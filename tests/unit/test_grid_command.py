"""The command ``grid``: what it prints, what it writes, its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import tilewheel
from tilewheel.manifest import dump
from tilewheel_build.cli import main
from tilewheel_build.profile_file import load_profile
from tilewheel_build.spec import load_specs
from tilewheel_build.variant import expand, select

ROOT = Path(__file__).resolve().parents[2]
MODELS = Path(__file__).resolve().parent / "data" / "models"


@pytest.fixture
def empty(overlay, manifest):
    """Make the only manifest of the machine one without artifacts, and return its directory."""
    (overlay / "manifest.json").write_text(dump(manifest()))
    return overlay


def grid(capsys: Any, *arguments: str) -> tuple[int, list[str], str]:
    """Run the command for Hopper; return its code, lines and errors."""
    code = main(["grid", "--target", "cuda", "--archs", "sm_90a", *arguments])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def test_the_profile_that_is_written_selects_the_keys_that_are_printed(tmp_path, capsys, empty):
    path = tmp_path / "new" / "v4.yaml"
    config = MODELS / "deepseek-v4-flash.json"
    code, lines, _ = grid(capsys, "--model", str(config), "--write", str(path))
    assert code == 0
    assert lines[-2:] == [f"wrote {path}", f"hint: make build PROFILE={path}"]
    printed = {line.split()[2] for line in lines if line.startswith("  not installed")}
    name, specs = load_profile(path, load_specs(ROOT))
    variants = [variant for spec in specs for variant in expand(spec, "cuda", ["sm_90a"])]
    selected = {str(variant.key) for variant in select(variants, profile=name, only=[])}
    assert selected == printed


def test_a_directory_with_a_configuration_is_a_model(tmp_path, capsys, empty):
    folder = tmp_path / "GLM-4.5"
    folder.mkdir()
    (folder / "config.json").write_text((MODELS / "glm-4.5.json").read_text())
    code, lines, _ = grid(capsys, "--model", str(folder), "--out", str(tmp_path / "out"))
    assert code == 0
    assert lines[0].startswith("glm4_moe: hidden 5120, 8 of 160 experts, rotary 64; tensor ")
    assert (tmp_path / "out/profiles/glm-4.5.yaml").read_text() == (
        "# glm4_moe: hidden 5120, 8 of 160 experts, rotary 64\n"
        "topk_gate:\n"
        "  - {num_experts: 160, num_topk: 8}\n"
        "apply_rotary:\n"
        "  - {dtype: bfloat16, head_dim: 64, interleaved: false}\n"
    )


def test_installed_keys_are_those_of_the_manifests(tmp_path, capsys, overlay, artifact, manifest):
    key = "topk_gate-num_experts=160-num_topk=8-cuda-sm_90a"
    (overlay / "manifest.json").write_text(dump(manifest(artifact(key))))
    tilewheel.refresh()
    config = str(MODELS / "glm-4.5.json")
    _, lines, errors = grid(capsys, "--model", config, "--out", str(tmp_path))
    assert f"  installed      {key}" in lines
    assert "1 of 2 keys are installed" in lines
    assert errors == ""


def test_manifests_that_cannot_be_read_are_told(tmp_path, capsys, overlay):
    (overlay / "manifest.json").write_text("{")
    tilewheel.refresh()
    config = str(MODELS / "glm-4.5.json")
    code, _, errors = grid(capsys, "--model", config, "--out", str(tmp_path))
    assert code == 0
    assert "problem: TILEWHEEL_ARTIFACTS: " in errors


def test_what_was_not_understood_is_printed(tmp_path, capsys, empty):
    config = tmp_path / "new.json"
    tree = {**json.loads((MODELS / "mixtral-8x7b.json").read_text()), "model_type": "new"}
    config.write_text(json.dumps({**tree, "architectures": ["NewForCausalLM"], "hc_mult": 3}))
    code, lines, _ = grid(capsys, "--model", str(config), "--out", str(tmp_path))
    assert code == 0
    notes = [line for line in lines if line.startswith("not ") and "needed" not in line]
    assert [line.split(",")[0] for line in notes] == [
        "not served: hc_mult: is 3",
        "not understood: architecture: is new",
        "not understood: rope_interleave: is missing",
    ]


def test_a_model_that_needs_nothing_ends_with_3_and_writes_nothing(tmp_path, capsys, empty):
    config = tmp_path / "vision.json"
    config.write_text('{"model_type": "siglip"}')
    code, lines, errors = grid(capsys, "--model", str(config), "--out", str(tmp_path))
    assert code == 3
    assert errors == f"{config}: asks for no operator of this checkout, must ask for one\n"
    assert any(line.startswith("not understood: architecture: is siglip") for line in lines)
    assert not (tmp_path / "profiles").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "gone.json"], "--model: gone.json cannot be read: No such file or directory"),
        (
            ["--model", str(ROOT / "README.md")],
            f"{ROOT}/README.md: is not JSON (Expecting value: line 1 column 1 (char 0)), "
            "must be a config.json",
        ),
        (
            ["--model", str(MODELS / "glm-4.5.json"), "--tensor-parallel", "0"],
            "--tensor-parallel: is 0, must be at least 1",
        ),
        (
            ["--model", str(MODELS / "glm-4.5.json"), "--write", "My model"],
            "--write: is My model, must be [a-z0-9.-] and end in .yaml",
        ),
        (
            ["--model", str(MODELS / "glm-4.5.json"), "--write", "/proc/none/glm.yaml"],
            "--write: /proc/none/glm.yaml cannot be written: No such file or directory",
        ),
        (
            ["--model", str(MODELS / "glm-4.5.json"), "--archs", "sm_90"],
            "arch: is 'sm_90', must be one of sm_90a, sm_80, sm_89, sm_100a, sm_103a, sm_120a, "
            "dav_3510\nhint: write sm_90a",
        ),
    ],
)
def test_wrong_options_end_with_2(capsys, empty, arguments, said):
    code, _, errors = grid(capsys, *arguments)
    assert (code, errors) == (2, f"{said}\n")


def test_the_page_shows_what_is_printed_and_written(tmp_path, capsys, empty):
    page = (ROOT / "docs" / "models.md").read_text()
    (printed,) = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (written,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    config = str(MODELS / "gpt-oss-120b.json")
    _, lines, _ = grid(capsys, "--model", config, "--tensor-parallel", "8", "--out", str(tmp_path))
    path = tmp_path / "profiles" / "gpt-oss-120b.yaml"
    shown = [line for line in lines if not line.startswith("not needed: ")]
    assert "\n".join(shown).replace(str(path), "out/profiles/gpt-oss-120b.yaml") + "\n" == printed
    assert path.read_text() == written
