"""Builds that fail or are stopped: what is kept, what is said, what stays published."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
STAGE = "stage-hidden=16384-cuda-sm_90a"


def key(mode: str) -> str:
    return f"broken-mode={mode}-cuda-sm_90a"


@pytest.fixture
def broken(copy: Any) -> Any:
    """Return a built checkout to which an operator with broken variants has come."""
    shutil.copytree(HERE / "broken", copy.root, dirs_exist_ok=True)
    return copy


def report(printed: str) -> dict[str, str]:
    """Return what is reported of each failed key."""
    parts = printed.split("\nfailed: ")[1:]
    return {part.splitlines()[0]: part.partition("\n")[2] for part in parts}


def test_failing_variants_are_reported_and_lose_no_other(broken: Any) -> None:
    done = broken.run("build", "--jobs", "2")
    assert done.returncode == 6
    assert "4 artifacts (3 from the cache), 5 failed" in done.stdout
    assert sorted(name for name in broken.published() if name.endswith(".so")) == [
        f"sm_90a/{key('fine')}.so",
        "sm_90a/scale-hidden=128-with_bias=false-cuda-sm_90a.so",
        "sm_90a/scale-hidden=any-with_bias=true-cuda-sm_90a.so",
        f"sm_90a/{STAGE}.so",
    ]
    messages = report(done.stderr)
    kept = {mode: f"kept: {broken.out}/work/{key(mode)}\n" for mode in MODES}
    assert sorted(messages) == sorted(key(mode) for mode in MODES)
    assert messages[key("factory")].startswith(
        f"probe/broken_cuda.py: broken: mode: is factory, must be fine\n{kept['factory']}"
    )
    assert messages[key("body")].startswith(
        "probe/broken_cuda.py: broken: AttributeError: "
        f"module 'tilelang.language' has no attribute 'no_such_function'\n{kept['body']}"
    )
    assert "broken: TileLang failed: Unsupported k_dim 7" in messages[key("lowering")]
    assert kept["lowering"] in messages[key("lowering")]
    command, code, *tail = messages[key("device_code")].splitlines()
    assert command.split()[0].endswith("/bin/nvcc")
    assert command.endswith("kernel.cu -o kernel.cubin")
    assert code == "ended with 1:"
    assert 'error: identifier "no_such_function" is undefined' in tail[0]
    assert kept["device_code"] in messages[key("device_code")]
    assert (broken.out / "work" / key("device_code") / "kernel.cu").is_file()
    assert messages[key("killed")].startswith(
        f"the worker process died (killed, or out of memory)\n{kept['killed']}"
    )
    assert broken.run("verify").returncode == 0


MODES = ("factory", "body", "lowering", "device_code", "killed")


def test_build_where_everything_fails_leaves_what_was_published(broken: Any) -> None:
    before = broken.published()
    done = broken.run("build", "--only", key("factory"))
    assert done.returncode == 5
    assert broken.published() == before


def test_lower_of_a_broken_kernel_ends_with_5(broken: Any) -> None:
    done = broken.run("lower", "--only", key("factory"))
    assert done.returncode == 5
    assert done.stderr == "probe/broken_cuda.py: broken: mode: is factory, must be fine\n"


def test_kernel_that_is_no_python_fails_its_own_variants_only(broken: Any) -> None:
    broken.kernel("broken_cuda.py").write_text("def broken(:\n")
    done = broken.run("build", "--only", key("fine"), "--only", "stage*")
    assert done.returncode == 5
    assert "probe/broken_cuda.py: cannot be imported: SyntaxError" in done.stderr
    assert "1 artifacts (1 from the cache), 1 failed" in done.stdout


def test_missing_host_compiler_ends_with_4(copy: Any) -> None:
    change(copy)
    done = copy.run("build", "--only", "stage*", PATH="")
    assert done.returncode == 4
    assert "g++: is not on PATH, must be installed for nvcc" in done.stderr


def change(checkout: Any) -> None:
    """Make ``stage`` a kernel that has to be built again."""
    kernel = checkout.kernel("stage_cuda.py")
    kernel.write_text(kernel.read_text().replace("threads=(32, 4)", "threads=(32, 8)"))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start_and_wait(checkout: Any) -> subprocess.Popen[str]:
    """Start a build in a process group of its own and return when it is compiling."""
    shutil.rmtree(checkout.out / "work", ignore_errors=True)
    process = subprocess.Popen(
        checkout.command("build", "--only", "stage*"),
        start_new_session=True,
        # A test run in the background of a shell ignores interrupts, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    source = checkout.out / "work" / STAGE / "kernel.cu"
    wait_for(lambda: source.exists() or process.poll() is not None)
    assert process.poll() is None
    return process


def group_ended(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_interrupted_and_killed_builds_leave_the_published_artifacts(copy: Any) -> None:
    before = copy.published()
    change(copy)

    interrupted = start_and_wait(copy)
    os.killpg(interrupted.pid, signal.SIGINT)
    _, printed = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130
    assert "Traceback" not in printed
    wait_for(lambda: group_ended(interrupted.pid))
    assert copy.published() == before

    killed = start_and_wait(copy)
    killed.kill()
    killed.communicate(timeout=60)
    # No worker outlives its driver.
    wait_for(lambda: group_ended(killed.pid))
    assert copy.published() == before
    assert copy.run("verify").returncode == 0

    done = copy.run("build")
    assert done.returncode == 0, done.stderr
    assert copy.leftovers() == []
    assert copy.published() != before
    assert copy.run("verify").returncode == 0
