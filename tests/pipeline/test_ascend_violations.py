"""A kernel that breaks the execution model: what Python sees of it, and what goes on afterwards.

A lowered source loses the synchronisation between its load and its vector code. It is compiled for
the simulator and embedded in the launcher that ships.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
KEY = "shift-hidden=256-num_vec_cores=any-staged=true-ascend_sim-dav_3510"
SYNCHRONISATION = re.compile(r"asc_sync_(?:notify|wait)\(PIPE_MTE2, PIPE_V, .*?\);")

PRELUDE = """
import threading
import torch
import tilewheel as tw
from tilewheel.ffi import tvm_ffi
torch.set_num_threads(1)
sound = tw.load("shift", device="ascend-sim", hidden=256, staged=True)
broken = tvm_ffi().load_module(artifact)["shift"]
x = torch.arange(40.0 * 256).reshape(40, 256)

def is_right(function, *extra):
    y = torch.zeros_like(x)
    function(x, y, True, 1, 2, 0.5, *extra)
    return torch.equal(y, x * 0.5 + 3)

def message():
    try:
        is_right(broken, 1)
    except RuntimeError as error:
        return str(error)
"""


@pytest.fixture(scope="module")
def broken(ascend_built: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory where an artifact without that synchronisation was built."""
    from tilewheel.key import Key
    from tilewheel_build.launcher import TEMPLATES
    from tilewheel_build.unit import ARGUMENTS_HEADER, LAUNCHER, compile_sources, read_unit

    work = tmp_path_factory.mktemp("broken")
    launcher = ascend_built.launcher(KEY)
    source = (ascend_built.out / "artifacts" / "ascend-sim" / "dav_3510" / f"{KEY}.asc").read_text()
    without, lost = SYNCHRONISATION.subn("", source)
    assert lost == 2
    (work / "kernel.asc").write_text(without)
    (work / LAUNCHER).write_text(launcher)
    shutil.copyfile(TEMPLATES / ARGUMENTS_HEADER, work / ARGUMENTS_HEADER)
    units = [path.parent for path in ascend_built.out.glob("cache/*/launcher.c")]
    (unit,) = (path for path in units if (path / LAUNCHER).read_text() == launcher)
    facts = read_unit(unit)
    assert facts is not None
    compile_sources(
        facts,
        work=work,
        target=Key.parse(KEY).target,
        machine=platform.machine(),
        zig_cache=ascend_built.out / "cache" / "zig",
    )
    return work


@pytest.fixture
def drive(
    ascend_built: Any, broken: Path, run_script: Callable[..., list[str]]
) -> Callable[[str], list[str]]:
    """Return the function that runs a script with both artifacts and gives what it printed."""
    artifacts = replace(ascend_built, backend="ascend-sim").artifacts
    prelude = f"artifact = {str(broken / 'artifact.so')!r}\n{PRELUDE}\n"
    return lambda script: run_script(
        prelude + script,
        PYTHONPATH=str(HERE.parents[1] / "runtime"),
        TILEWHEEL_ARTIFACTS=str(artifacts),
    )


def line_of(source: str, text: str) -> int:
    (number,) = (n for n, line in enumerate(source.splitlines(), start=1) if text in line)
    return number


def test_violation_names_kernel_block_line_and_buffer_and_later_launches_work(
    drive: Callable[[str], list[str]], broken: Path
) -> None:
    printed = drive(
        """
with tw.simulator.race_detection():
    print(message())
    for _ in range(3):
        print("race at ub offset" in message(), is_right(sound))
# In program order, which is what the simulator executes, the result is right.
print(is_right(broken, 8), is_right(sound))
"""
    )
    source = (broken / "kernel.asc").read_text()
    assert re.sub(r"ACL error \d+", "ACL error N", printed[0]) == (
        "shift: launching shift_kernel failed with ACL error N: "
        f"shift_kernel: block 0: line {line_of(source, 'auto value = ')}: "
        "race at ub offset 0 (buf_dyn_shmem + 0): PIPE_V reads while PIPE_MTE2 may still write it "
        f"(line {line_of(source, 'asc_copy_gm2ub_align(')}), must be ordered by a flag or barrier"
    )
    assert printed[1].strip().startswith("auto value = simd_inst::vlds_norm<float>(")
    assert printed[2:] == ["True True"] * 4


def test_violations_on_four_threads_at_once_stay_apart_from_sound_launches(
    drive: Callable[[str], list[str]],
) -> None:
    printed = drive(
        """
together = threading.Barrier(4)
results = [[] for _ in range(4)]

def work(number):
    together.wait()
    for turn in range(10):
        if (number + turn) % 2:
            results[number].append("block 0: line" in message())
        else:
            results[number].append(is_right(sound))

with tw.simulator.race_detection():
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print([sum(result) for result in results], is_right(sound), is_right(broken, 8))
"""
    )
    assert printed == ["[10, 10, 10, 10] True True"]
