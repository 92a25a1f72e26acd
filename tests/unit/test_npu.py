"""The adapter to torch_npu: when it is imported, and which stream it gives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tilewheel
from tilewheel import npu

RUNTIME = Path(tilewheel.__file__).parents[1]

BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch_npu":
            raise AssertionError("torch_npu is imported")

sys.meta_path.insert(0, Blocker())
"""

NOT_ON_AN_NPU = """
import torch
import tilewheel as tw

scores = torch.randn(4, 64)
tw.moe.topk_gate(scores, num_topk=6)
torch.ops.tilewheel.topk_gate(scores, 6)
tw.artifacts()
for device in ("ascend-sim", "cuda-sm_90a", "ascend-dav_3510"):
    str(tw.why("topk_gate", device=device, num_experts=64, num_topk=6))
from tilewheel.device import resolve
try:
    resolve(None)
except RuntimeError:
    pass
"""


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKER + script],
        env={**os.environ, "PYTHONPATH": str(RUNTIME), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_nothing_imports_torch_npu_while_no_tensor_is_on_an_npu() -> None:
    done = run(NOT_ON_AN_NPU)
    assert done.returncode == 0, done.stderr


def test_naming_an_npu_imports_torch_npu() -> None:
    done = run("import tilewheel as tw\ntw.why('topk_gate', device='npu:0')")
    assert done.stderr.endswith("AssertionError: torch_npu is imported\n")


@pytest.fixture
def torch_npu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return the function that puts a stand-in for torch_npu in place; its calls are listed."""

    def install(*, gives_raw_streams: bool) -> list[str]:
        calls: list[str] = []

        def raw(index: int) -> int:
            calls.append(f"raw {index}")
            return 0x50 + index

        def current(index: int) -> Any:
            calls.append(f"current {index}")
            return SimpleNamespace(npu_stream=0x40 + index)

        module = SimpleNamespace(
            npu=SimpleNamespace(current_stream=current),
            _C=SimpleNamespace(**{"_npu_getCurrentRawStream": raw} if gives_raw_streams else {}),
        )
        monkeypatch.setitem(sys.modules, "torch_npu", module)
        return calls

    return install


def test_raw_stream_comes_first_and_no_stream_object_is_made(
    torch_npu: Callable[..., list[str]],
) -> None:
    calls = torch_npu(gives_raw_streams=True)
    stream = npu.stream_getter()
    assert calls == []
    assert (stream(3), stream(0)) == (0x53, 0x50)
    assert calls == ["raw 3", "raw 0"]


def test_stream_object_serves_where_torch_npu_gives_no_raw_stream(
    torch_npu: Callable[..., list[str]],
) -> None:
    calls = torch_npu(gives_raw_streams=False)
    assert npu.stream_getter()(2) == 0x42
    assert calls == ["current 2"]
