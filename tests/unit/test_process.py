"""Running a tool: what a failure says, what of the environment it does not see, when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewheel_build.errors import CompilationError, ToolchainError
from tilewheel_build.pool import run_units
from tilewheel_build.process import recorded_runs, run_tool


def run(script: str, folder: Path, timeout_s: float = 60) -> str:
    return run_tool([sys.executable, "-c", script], cwd=folder, timeout_s=timeout_s)


def test_output_and_errors_come_back_together(tmp_path: Path) -> None:
    script = "import sys; print('one', flush=True); print('two', file=sys.stderr)"
    assert run(script, tmp_path) == "one\ntwo\n"


def test_tool_runs_in_the_given_directory(tmp_path: Path) -> None:
    assert run("import os; print(os.getcwd())", tmp_path) == f"{tmp_path.resolve()}\n"


def test_failure_has_the_command_the_code_and_the_tail_of_the_output(tmp_path: Path) -> None:
    with pytest.raises(CompilationError) as caught:
        run("[print(i) for i in range(100)]; raise SystemExit(3)", tmp_path)
    command, code, *tail = str(caught.value).splitlines()
    assert command == (f"{sys.executable} -c '[print(i) for i in range(100)]; raise SystemExit(3)'")
    assert code == "ended with 3:"
    assert tail == [str(i) for i in range(70, 100)]


def test_runs_are_recorded_while_someone_asks_for_it(tmp_path: Path) -> None:
    run_tool(["touch", "a"], cwd=tmp_path)
    with recorded_runs() as runs:
        run_tool(["sleep", "0.2"], cwd=tmp_path)
        run_tool(["touch", "b"], cwd=tmp_path)
    run_tool(["touch", "c"], cwd=tmp_path)
    assert [item.output for item in runs] == ["0.2", "b"]
    assert runs[0].seconds >= 0.2


def test_tool_that_a_signal_ends_fails(tmp_path: Path) -> None:
    with pytest.raises(CompilationError, match="ended with -9:"):
        run("import os; os.kill(os.getpid(), 9)", tmp_path)


def test_tool_that_runs_too_long_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(CompilationError, match=r"ran for 0.2 s, must end sooner$"):
        run("import time; time.sleep(60)", tmp_path, timeout_s=0.2)


def test_children_of_a_tool_that_runs_too_long_end_with_it(tmp_path: Path) -> None:
    script = "sleep 60 & echo $! > child; wait"
    with pytest.raises(CompilationError):
        run_tool(["sh", "-c", script], cwd=tmp_path, timeout_s=0.5)
    stat = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    wait_until(lambda: has_ended(stat), 10)


def has_ended(stat: Path) -> bool:
    """Return whether a process is gone, or dead and not yet collected by its new parent."""
    try:
        return stat.read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


def compile_long(folder: Path) -> str:
    """Run what lasts, a child of a compiler's driver, as units do."""
    return run_tool(["sh", "-c", "sleep 600 & echo $! > new; mv new child; wait"], cwd=folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_compilers_of_workers_end_with_the_driver(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pathlib import Path; import test_process; test_process.build(Path.cwd())"
    )
    paths = (str(Path(__file__).parent), *sys.path)
    driver = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stderr=subprocess.DEVNULL,
    )
    child = tmp_path / "child"
    try:
        wait_until(child.exists, 60)
        driver.send_signal(number)
        driver.wait(30)
        wait_until(lambda: has_ended(Path("/proc", child.read_text().strip(), "stat")), 30)
    finally:
        driver.kill()


def build(folder: Path) -> None:
    """Be the driver."""
    list(run_units(compile_long, [folder], 1))


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_tool_that_is_not_there_is_a_toolchain_error(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError) as caught:
        run_tool(["/no/such/compiler", "-v"], cwd=tmp_path)
    assert str(caught.value) == "/no/such/compiler: cannot be started: No such file or directory"


def test_output_that_is_no_utf8_is_shown_anyway(tmp_path: Path) -> None:
    script = "import sys; sys.stdout.buffer.write(bytes([0xff, 0x41]))"
    assert run(script, tmp_path) == "\ufffdA"


@pytest.mark.parametrize("name", ["NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "CPATH"])
def test_variable_that_changes_what_a_compiler_makes_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "-G")
    assert run(f"import os; print(os.environ.get({name!r}))", tmp_path) == "None\n"


def test_messages_are_in_one_language_and_given_variables_arrive(tmp_path: Path) -> None:
    printed = run_tool(
        [sys.executable, "-c", "import os; print(os.environ['LC_ALL'], os.environ['ZIG'])"],
        cwd=tmp_path,
        environment={"ZIG": "cache"},
    )
    assert printed == "C cache\n"
