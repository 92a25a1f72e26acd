"""The command line: what each command says, its JSON, its exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tilewheel as tw
from tilewheel.__main__ import main
from tilewheel.manifest import dump

KEY = "topk_gate-num_experts=4-num_topk=2-ascend_sim-dav_3510"
CUDA = "topk_gate-num_experts=256-num_topk=8-cuda-sm_90a"


@pytest.fixture
def run(capsys):
    """Return the function that runs a command and gives exit code, output and error output."""

    def call(*argv: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(argv)
        captured = capsys.readouterr()
        return int(caught.value.code or 0), captured.out, captured.err

    return call


@pytest.fixture
def listed(overlay, artifact, manifest):
    """Put a manifest of two artifacts, without their files, into the overlay."""
    described = manifest(artifact(CUDA), artifact(KEY, limits=(("num_topk", 1, 32),)))
    (overlay / "manifest.json").write_text(dump(described))
    return overlay


def test_list_is_a_table_sorted_by_key(run, listed):
    assert run("list") == (
        0,
        "key                                                     size_bytes  verification  source\n"
        f"{KEY}  1           none          TILEWHEEL_ARTIFACTS\n"
        f"{CUDA}        1           none          TILEWHEEL_ARTIFACTS\n",
        "",
    )


def test_list_takes_a_glob(run, listed):
    code, out, _ = run("list", "*-cuda-*", "--json")
    assert code == 0
    assert [row["key"] for row in json.loads(out)["artifacts"]] == [CUDA]


def test_list_with_nothing_selected_exits_with_3(run, listed):
    assert run("list", "nothing*") == (3, "no artifact matches 'nothing*'; 2 are installed\n", "")


def test_list_without_artifacts_says_how_to_get_them(run, overlay, monkeypatch):
    monkeypatch.delenv("TILEWHEEL_ARTIFACTS")
    assert run("list") == (
        3,
        "no artifacts are installed\n"
        "hint: pip install tilewheel-cu13, or set TILEWHEEL_ARTIFACTS to a directory "
        "of artifacts\n",
        "",
    )


def test_list_of_a_broken_manifest_shows_the_problem(run, overlay):
    (overlay / "manifest.json").write_text("{}")
    assert run("list")[:2] == (
        3,
        "no artifacts can be read\n"
        f"problem: TILEWHEEL_ARTIFACTS: {overlay}/manifest.json.schema_version: is missing, "
        "must be an array\n",
    )


def test_info_shows_every_field(run, listed):
    code, out, _ = run("info", KEY)
    assert code == 0
    lines = out.splitlines()
    assert f"key: {KEY}" in lines
    assert "  num_experts: 4" in lines
    assert "  num_topk: 1 32" in lines
    assert "  name=scores kind=tensor dtype=float32 role=in shape=-" in lines
    assert f"file: {listed}/dav_3510/{KEY}.so" in lines
    assert "overlay: true" in lines


def test_info_as_json(run, listed):
    _, out, _ = run("info", KEY, "--json")
    tree = json.loads(out)
    assert tree["parameters"] == {"num_experts": 4, "num_topk": 2}
    assert tree["limits"] == {"num_topk": [1, 32]}
    assert tree["launch"]["pdl"] is False


def test_info_of_an_unknown_key_lists_the_nearest(run, listed):
    wrong = CUDA.replace("=8", "=6")
    assert run("info", wrong) == (
        3,
        f"key: is {wrong!r}, must be one of, nearest first:\n  {CUDA}\n  {KEY}\n",
        "",
    )


def test_why_explains_a_choice(run, listed):
    code, out, _ = run(
        "why", "topk_gate", "num_experts=256", "num_topk=8", "--target", "cuda-sm_90a"
    )
    assert code == 0
    assert out.splitlines()[0] == f"topk_gate num_experts=256 num_topk=8 on cuda-sm_90a: {CUDA}"


def test_why_as_json(run, listed):
    request = ("topk_gate", "num_experts=256", "num_topk=8", "--target", "cuda-sm_90a")
    tree = json.loads(run("why", *request, "--json")[1])
    assert (tree["choice"], tree["source"]) == (CUDA, "TILEWHEEL_ARTIFACTS")
    assert tree["file"] == f"{listed}/sm_90a/{CUDA}.so"
    assert tree["alternatives"] == []
    assert tree["parameters"] == {"num_experts": 256, "num_topk": 8}
    assert tree["device"]["properties"] == {}
    assert [item["key"] for item in tree["rejections"]] == [KEY]


def test_why_explains_that_nothing_fits(run, listed):
    arguments = ("why", "topk_gate", "num_experts=160", "num_topk=8", "--target", "cuda-sm_90a")
    code, out, _ = run(*arguments)
    assert code == 3
    assert f"  {CUDA}: num_experts is 256, request has 160" in out.splitlines()
    code, out, _ = run(*arguments, "--json")
    tree = json.loads(out)
    assert code == 3
    assert tree["choice"] is None
    assert tree["rejections"][0] == {
        "key": CUDA,
        "reasons": ["num_experts is 256, request has 160"],
    }
    assert tree["command"].startswith("python -m tilewheel_build build --target cuda ")


def test_why_of_a_device_that_is_not_here_says_how_to_name_a_target(run, listed):
    code, out, _ = run("why", "topk_gate", "--target", "cuda:99")
    assert code == 3
    assert out.startswith("device: is 'cuda:99', this machine has ")
    assert out.endswith("hint: name another machine's target with --target, e.g. cuda-sm_90a\n")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("gpu", "device: is 'gpu', must be cuda[:N], "),
        ("bogus-x", "device: backend: is 'bogus', must be one of cuda, "),
    ],
)
def test_why_of_a_wrong_target_is_a_command_line_error(run, listed, target, message):
    code, out, _ = run("why", "topk_gate", "--target", target)
    assert code == 2
    assert out.startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8", "is '8', must be NAME=VALUE"),
        ("Num=8", "is 'Num=8', must be NAME=VALUE"),
        ("num=8.5", "value: is '8.5', must be an integer, true, false or [A-Za-z0-9_]+"),
    ],
)
def test_wrong_parameter_is_a_command_line_error(run, text, message):
    code, _, err = run("why", "topk_gate", text)
    assert code == 2
    assert err.splitlines()[-1].endswith(message)


@pytest.mark.parametrize("name", ["operator", "device"])
def test_argument_of_the_api_is_no_parameter(run, name):
    assert run("why", "topk_gate", f"{name}=3") == (2, f"{name}: is no parameter\n", "")


def test_parameter_given_twice_is_a_command_line_error(run):
    assert run("why", "topk_gate", "num_topk=8", "num_topk=6") == (
        2,
        "num_topk: is given twice, must be once\n",
        "",
    )


def test_number_of_thousands_of_digits_is_a_command_line_error(run):
    code, _, err = run("why", "topk_gate", f"num_topk={'9' * 5000}")
    assert code == 2
    assert err.splitlines()[-1].endswith("value: is 5000 characters, must be at most 200")


def command(*argv: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(tw.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-m", "tilewheel", *argv],
        stderr=subprocess.PIPE,
        env={**environment, **options.pop("env", {})},
        check=False,
        **options,
    )


def test_reader_that_leaves_early_is_no_error_to_speak_of(listed):
    reader, writer = os.pipe()
    os.close(reader)
    done = command("list", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_reported(listed):
    with open("/dev/full", "wb") as full:
        done = command("list", stdout=full)
    assert (done.returncode, done.stderr) == (
        1,
        b"standard output: cannot be written: No space left on device\n",
    )


def test_text_that_the_terminal_cannot_show_is_escaped(listed):
    options = {"PYTHONIOENCODING": "latin-1"}
    done = command("why", "\u0442", "--target", "cuda-sm_90a", stdout=subprocess.PIPE, env=options)
    assert done.returncode == 3
    # The operators that it lists are this machine's, built ones included.
    assert done.stdout.startswith(b"operator: is '\\u0442', must be one of: ")
    assert b"topk_gate" in done.stdout


def test_interrupt_ends_with_130_and_no_traceback(run, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilewheel.cli._select", interrupt)
    assert run("list") == (130, "", "")


@pytest.mark.parametrize("argv", [(), ("nothing",), ("info",)])
def test_wrong_command_line_exits_with_2(run, argv):
    assert run(*argv)[0] == 2


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Make an empty directory that of an installed package, and return it."""
    root = tmp_path / "site" / "tw_fake_cli"
    root.mkdir(parents=True)
    monkeypatch.syspath_prepend(root.parent)
    monkeypatch.delenv("TILEWHEEL_ARTIFACTS", raising=False)
    point = EntryPoint(name="fake", value="tw_fake_cli", group="tilewheel.artifacts")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: (point,))
    tw.refresh()
    yield root
    tw.refresh()


def change_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_verify_checks_files_and_hashes_them_on_demand(run, package, install):
    install(package, KEY)
    assert run("verify") == (0, "1 of 1 artifacts right in place and size\n", "")
    assert run("verify", "--hash") == (
        0,
        "1 of 1 artifacts right in place, size and hash\n",
        "",
    )


def test_verify_says_how_many_were_hashed(run, package, install, tmp_path, monkeypatch):
    install(package, KEY)
    (tmp_path / "other").mkdir()
    install(tmp_path / "other", KEY)
    monkeypatch.setenv("TILEWHEEL_ARTIFACTS", str(tmp_path / "other"))
    tw.refresh()
    assert run("verify")[1] == "2 of 2 artifacts right in place and size, 1 in hash too\n"


def test_verify_always_hashes_an_overlay(run, overlay, install):
    path = overlay / install(overlay, KEY).path
    assert run("verify") == (0, "1 of 1 artifacts right in place, size and hash\n", "")
    change_last_byte(path)
    code, out, _ = run("verify", "--json")
    assert code == 7
    tree = json.loads(out)
    assert (tree["num_checked"], tree["num_hashed"]) == (1, 1)
    assert tree["failures"][0].startswith(f"{KEY}: sha256 of ")


def test_verify_reports_what_is_wrong_and_exits_with_7(run, listed):
    code, out, _ = run("verify", "*-cuda-*")
    assert code == 7
    assert out == (
        "0 of 1 artifacts right in place, size and hash\n"
        f"{CUDA}: {listed}/sm_90a/{CUDA}.so is missing, must be the file that the manifest lists\n"
        "hint: build the artifact and its manifest again\n"
    )


def test_verify_with_hash_finds_a_changed_byte(run, package, install):
    change_last_byte(package / install(package, KEY).path)
    assert run("verify")[0] == 0
    code, out, _ = run("verify", "--hash", "--json")
    assert code == 7
    assert json.loads(out)["failures"][0].startswith(f"{KEY}: sha256 of ")


def test_verify_of_a_broken_manifest_exits_with_7(run, overlay):
    (overlay / "manifest.json").write_text("{")
    code, out, _ = run("verify")
    assert code == 7
    assert "problem: TILEWHEEL_ARTIFACTS: " in out


def test_env_shows_versions_devices_and_sources(run, listed):
    code, out, _ = run("env")
    assert code == 0
    lines = out.splitlines()
    assert f"tilewheel: {tw.__version__}" in lines
    assert f"  {listed}:" in lines
    assert "    num_artifacts: 2" in lines
    assert "    archs: dav_3510 sm_90a" in lines
    assert f"  TILEWHEEL_ARTIFACTS: {listed}" in lines


def test_env_as_json(run, listed, monkeypatch):
    monkeypatch.setattr("tilewheel.device._driver", lambda: None)
    code, out, _ = run("env", "--json")
    assert code == 0
    tree = json.loads(out)
    assert (tree["manifest_schema"], tree["runtime_abi"]) == ("1.0", 1)
    assert tree["packages"]["torch"] == metadata.version("torch")
    assert tree["driver"] == {"cuda": "not installed"}
    simulator = "ascend-sim:0 (functional simulator, dav_3510)"
    assert tree["devices"] == {simulator: {"target": "ascend_sim-dav_3510", "num_vec_cores": 64}}
    assert tree["manifests"] == {
        str(listed): {
            "source": "TILEWHEEL_ARTIFACTS",
            "overlay": True,
            "backend": "cuda",
            "tilewheel": "0.1.0",
            "commit": None,
            "dirty": None,
            "archs": ["dav_3510", "sm_90a"],
            "num_artifacts": 2,
            "size_bytes": 2,
        }
    }
    assert tree["variables"] == {"TILEWHEEL_ARTIFACTS": str(listed), "TILEWHEEL_LOG": ""}
    assert tree["problems"] == []


@pytest.mark.parametrize(
    ("version", "text"),
    [(13000, "CUDA 13.0, branch 580"), (12080, "CUDA 12.8, branch 570"), (11080, "CUDA 11.8")],
)
def test_env_tells_the_driver(run, overlay, monkeypatch, version, text):
    monkeypatch.setattr("tilewheel.device.cuda_driver_version", lambda: version)
    assert json.loads(run("env", "--json")[1])["driver"] == {"cuda": text}


def test_env_names_a_torch_npu_that_does_not_import(run, overlay, monkeypatch):
    versions = {"torch_npu": "2.13.0"}
    monkeypatch.setattr(
        "tilewheel.environment._version", lambda name: versions.get(name, "not installed")
    )
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    code, out, _ = run("env", "--json")
    tree = json.loads(out)
    assert code == 0
    assert tree["packages"]["torch_npu"] == "2.13.0"
    assert any("torch_npu cannot be imported" in problem for problem in tree["problems"])


def test_env_lists_npus(run, overlay, monkeypatch):
    npu = SimpleNamespace(
        device_count=lambda: 1,
        get_device_name=lambda index: "Ascend950DT_95A1",
        get_device_properties=lambda index: SimpleNamespace(vector_core_num=72),
    )
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(npu=npu))
    monkeypatch.setattr("tilewheel.environment._version", lambda name: "2.13.0")
    tree = json.loads(run("env", "--json")[1])
    assert tree["devices"]["ascend:0 (Ascend950DT_95A1, dav_3510)"] == {
        "target": "ascend-dav_3510",
        "num_vec_cores": 72,
    }


def test_json_is_as_the_page_says(run, overlay, install):
    install(overlay, KEY)
    commands = {
        "env": ("env",),
        "list": ("list",),
        "info": ("info", KEY),
        "why": ("why", "topk_gate", "num_experts=4", "num_topk=2", "--target", "ascend-sim"),
        "verify": ("verify",),
        "selftest": ("selftest",),
    }
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (`.*`) \|$", page, re.MULTILINE)
    documented = {name: re.findall(r"`(\w+)`", fields) for name, fields in rows}
    assert documented == {
        name: list(json.loads(run(*argv, "--json")[1])) for name, argv in commands.items()
    }


def test_version_is_printed(run):
    assert run("--version") == (0, f"{tw.__version__}\n", "")
