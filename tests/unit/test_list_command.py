"""The command ``list``: what it prints of the project's own specs, and what it says beside that."""

from __future__ import annotations

from typing import Any

import pytest

from tilewheel_build.cli import main

HOPPER = "topk_gate-num_experts=256-num_topk=8-cuda-sm_90a"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--archs sm_90a", "ascend-sim: left out, as --archs names none of its architectures\n"),
        ("--archs sm_90a,dav_3510", ""),
        ("--archs sm_90a --target cuda", ""),
    ],
)
def test_a_target_that_archs_leaves_out_is_named(capsys: Any, arguments: str, said: str) -> None:
    assert main(["list", *arguments.split(), "--only", HOPPER]) == 0
    assert capsys.readouterr() == (f"{HOPPER}\n", said)
