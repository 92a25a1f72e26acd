"""The self-test: every artifact of this machine against the reference."""

from __future__ import annotations

import json
import sys

import pytest

import tilewheel as tw
from tilewheel import selftest
from tilewheel.__main__ import main
from tilewheel.device import simulated
from tilewheel.manifest import dump

KEY = "topk_gate-num_experts=4-num_topk=2-ascend_sim-dav_3510"
GENERIC = "topk_gate-num_experts=any-num_topk=any-ascend_sim-dav_3510"


def rows(only: str = "*") -> list[tuple[str, str, str]]:
    found = selftest.run(tw.artifacts(), (simulated(),), only)
    return [(row.key, row.status, row.reason) for row in found]


@pytest.mark.parametrize("key", [KEY, GENERIC])
def test_right_artifact_is_exact(overlay, install, key):
    install(overlay, key)
    assert rows() == [(key, "exact", "")]


def test_wrong_artifact_is_a_mismatch(overlay, install):
    install(overlay, KEY, "-DWRONG")
    ((_, status, reason),) = rows()
    assert status == "mismatch"
    assert reason.startswith(
        "num_tokens=1 num_experts=4 num_topk=2: idx: 1 of 2 differ; at (0, 0) is "
    )


def test_artifact_that_does_not_load_fails(overlay, artifact, manifest):
    (overlay / "manifest.json").write_text(dump(manifest(artifact(KEY))))
    ((_, status, reason),) = rows()
    assert status == "failed"
    assert reason.startswith(f"ArtifactLoadError: {KEY}: {overlay}/dav_3510/{KEY}.so is missing")


def test_artifact_that_cannot_run_here_is_skipped_with_the_reason(overlay, artifact, manifest):
    cuda = "topk_gate-num_experts=4-num_topk=2-cuda-sm_90a"
    cores = "topk_gate-num_experts=4-num_topk=2-num_vec_cores=96-ascend_sim-dav_3510"
    other = "other-ascend_sim-dav_3510"
    (overlay / "manifest.json").write_text(dump(manifest(*map(artifact, (cuda, cores, other)))))
    assert rows() == [
        (other, "skipped", "no self-test for operator other"),
        (cores, "skipped", "num_vec_cores is 96, device has 64"),
        (cuda, "skipped", "no cuda device that torch can use"),
    ]


def test_only_selects_by_key(overlay, artifact, manifest):
    other = "other-ascend_sim-dav_3510"
    (overlay / "manifest.json").write_text(dump(manifest(artifact(KEY), artifact(other))))
    assert [key for key, _, _ in rows("other-*")] == [other]


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    return int(caught.value.code or 0)


def test_command_exits_with_0_where_all_is_exact(overlay, install, capsys):
    install(overlay, KEY)
    assert run("selftest") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 exact, 0 mismatch, 0 failed, 0 skipped"


def test_command_exits_with_7_where_one_is_wrong(overlay, install, capsys):
    install(overlay, KEY, "-DWRONG")
    assert run("selftest", "--json") == 7
    tree = json.loads(capsys.readouterr().out)
    assert (tree["exact"], tree["mismatch"]) == (0, 1)
    assert tree["rows"][0]["key"] == KEY


def test_reason_of_several_lines_stays_in_its_row(overlay, artifact, manifest, capsys):
    (overlay / "manifest.json").write_text(dump(manifest(artifact(KEY))))
    assert run("selftest") == 7
    head, row, summary = capsys.readouterr().out.splitlines()
    assert head.split() == ["key", "status", "time_ms", "reason"]
    assert row.startswith(f"{KEY}  failed  ")
    assert row.endswith(
        "must be the file that the manifest lists; hint: build the artifact and its manifest again"
    )
    assert summary == "0 exact, 0 mismatch, 1 failed, 0 skipped"
    assert run("selftest", "--json") == 7
    assert "\nhint: " in json.loads(capsys.readouterr().out)["rows"][0]["reason"]


def test_command_exits_with_3_where_nothing_matches(overlay, install):
    install(overlay, KEY)
    assert run("selftest", "nothing*") == 3


def test_command_without_torch_says_what_to_install(overlay, install, capsys, monkeypatch):
    install(overlay, KEY)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run("selftest") == 3
    printed = capsys.readouterr().out
    assert printed.startswith("torch: cannot be imported: ")
    assert printed.endswith("\nhint: install torch, which is the reference\n")
