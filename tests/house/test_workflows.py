"""The CI workflows: valid, pinned, with the least rights, and calling what exists."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
VENV = Path(sys.executable).parent


def load(path: Path) -> dict[str, Any]:
    # BaseLoader leaves `on` a string.
    tree: dict[str, Any] = yaml.load(path.read_text(), Loader=yaml.BaseLoader)
    return tree


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in load(path)["jobs"].values() for step in job["steps"]]


def actionlint(*paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [VENV / "actionlint", "-no-color", "-shellcheck", VENV / "shellcheck", *paths],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


needs_actionlint = pytest.mark.skipif(
    not (VENV / "actionlint").exists(), reason="actionlint is not installed"
)


@needs_actionlint
def test_workflows_are_valid():
    done = actionlint(*WORKFLOWS)
    assert (done.returncode, done.stdout) == (0, "")


@needs_actionlint
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("needs: dist", "needs: distribution", "needs job"),
        ("${{ matrix.shard }}", "${{ matrix.shards }}", 'property "shards" is not defined'),
        ("sha256sum -- *.whl", "sha256sum $(ls)", "shellcheck reported issue"),
        ("attestations: write", "attestation: write", "unknown permission scope"),
    ],
)
def test_a_fault_in_a_workflow_is_found(tmp_path, old, new, message):
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert old in text
    (tmp_path / "release.yml").write_text(text.replace(old, new))
    done = actionlint(tmp_path / "release.yml")
    assert done.returncode == 1
    assert message in done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_to_a_commit_and_says_its_version(path):
    uses = re.findall(r"uses: (.*)", path.read_text())
    assert uses
    for line in uses:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_the_page_lists_the_pins_of_the_workflows():
    page = (ROOT / "docs" / "release.md").read_text()
    listed = re.findall(
        r"^\| (actions/[\w-]+) \| ([\d.]+) \| ([0-9a-f]{40}) \|$", page, re.MULTILINE
    )
    uses = {line for path in WORKFLOWS for line in re.findall(r"uses: (.*)", path.read_text())}
    assert {f"{name}@{commit} # v{version}" for name, version, commit in listed} == uses


def test_an_action_has_one_version_in_all_workflows():
    uses = {line for path in WORKFLOWS for line in re.findall(r"uses: (.*)", path.read_text())}
    assert len(uses) == len({line.partition("@")[0] for line in uses})


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_only_read_and_keep_no_token(path):
    tree = load(path)
    assert tree["permissions"] == {"contents": "read"}
    for name, job in tree["jobs"].items():
        assert "permissions" not in job or name == "release"
        assert int(job["timeout-minutes"]) <= 180
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] == "false"


def test_only_the_release_of_a_tag_may_write():
    job = load(ROOT / ".github/workflows/release.yml")["jobs"]["release"]
    assert job["if"] == "github.event_name == 'push' && github.ref_type == 'tag'"
    assert job["permissions"] == {
        "contents": "write",
        "id-token": "write",
        "attestations": "write",
    }


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_scripts_take_values_from_the_environment_only(path):
    # An expression inside a script would let a branch's or input's name run commands.
    for step in steps(path):
        assert "${{" not in step.get("run", ""), step


def typed_inputs(path: Path) -> set[str]:
    """Return the inputs that a person types, rather than chooses."""
    trigger = load(path)["on"]
    dispatch = trigger.get("workflow_dispatch") or {}
    return {
        name
        for name, described in (dispatch.get("inputs") or {}).items()
        if described["type"] != "choice"
    }


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_typed_input_reaches_only_steps_that_check_it(path):
    tree = load(path)
    outside_steps = [tree.get("env"), *(job.get("env") for job in tree["jobs"].values())]
    for name in typed_inputs(path):
        assert f"inputs.{name}" not in str(outside_steps)
        users = [step for step in steps(path) if f"inputs.{name}" in str(step)]
        assert [step["env"][name.upper()] for step in users] == [f"${{{{ inputs.{name} }}}}"]
        assert users[0]["run"].startswith(f"if [[ ! ${name.upper()} =~ ^[")


@pytest.mark.parametrize(
    ("archs", "code"),
    [
        ("", 0),
        ("sm_90a,dav_3510", 0),
        ("$(shell touch made)", 2),
        ("'; touch made; '", 2),
        ("sm_90a\ntouch made", 2),
        ("../x", 2),
        ("--out=x", 2),
    ],
)
def test_archs_that_are_none_never_reach_make(tmp_path, archs, code):
    (step,) = (s for s in steps(ROOT / ".github/workflows/release.yml") if "inputs" in str(s))
    (tmp_path / "Makefile").write_text("ARCHS ?=\nbuild:\n\techo '$(ARCHS)' > called\n")
    environment = {"PATH": os.environ["PATH"], "ARCHS": archs, "INDEX": "1", "NUM_SHARDS": "4"}
    # As the runner starts a script.
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert not (tmp_path / "made").exists()
    assert (tmp_path / "called").exists() == (code == 0)


def test_no_file_for_ci_names_a_package_index():
    # Which index has a torch for the tests is a matter of who runs them: a repository variable.
    for path in [*WORKFLOWS, ROOT / "pyproject.toml", ROOT / "requirements-dev.txt"]:
        assert not re.findall(r"https?://\S*", path.read_text()), path


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_make_targets_and_files_that_workflows_name_exist(path):
    scripts = "\n".join(step.get("run", "") for step in steps(path))
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z]+) \?=", makefile, re.MULTILINE))
    for target, arguments in re.findall(r"\bmake ([a-z-]+)(.*)", scripts):
        assert target in targets
        assert set(re.findall(r"\b([A-Z]+)=", arguments)) <= variables
    for name in re.findall(r"(?<!\S)((?:\.ci|wheels|tests)/[\w./-]+)", scripts):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(
    ("archs", "identifiers"),
    [
        ("x86_64", ["cp312-manylinux_x86_64"]),
        ("aarch64", ["cp312-manylinux_aarch64"]),
        ("x86_64,aarch64", ["cp312-manylinux_x86_64", "cp312-manylinux_aarch64"]),
    ],
)
def test_cibuildwheel_makes_one_wheel_for_each_processor(tmp_path, archs, identifiers):
    if importlib.util.find_spec("cibuildwheel") is None:
        pytest.skip("cibuildwheel needs Python 3.11")
    package = tmp_path / "wheels" / "tilewheel-cu13"
    package.mkdir(parents=True)
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    (package / "pyproject.toml").write_text(
        '[project]\nname = "tilewheel-cu13"\nversion = "0"\nrequires-python = ">=3.10"\n'
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "cibuildwheel", "--platform", "linux", "--archs", archs),
            *("--config-file", "pyproject.toml", "--print-build-identifiers", str(package)),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout.split()) == (0, identifiers), done.stderr
