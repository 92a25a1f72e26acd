"""Running compilers: the only place that starts a subprocess."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from tilewheel_build.errors import CompilationError, ToolchainError

TAIL_LINES = 30

TIMEOUT_S = 600.0
"""How long one run of a compiler may take where the caller does not say."""

UNSEEN_VARIABLES = frozenset(
    {
        "NVCC_APPEND_FLAGS",
        "NVCC_PREPEND_FLAGS",
        "CPATH",
        "C_INCLUDE_PATH",
        "CPLUS_INCLUDE_PATH",
        "LIBRARY_PATH",
        "GCC_EXEC_PREFIX",
        "COMPILER_PATH",
    }
)
"""Variables that would change what a compiler makes, which no fingerprint sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """One run of a compiler: the last word of its command, which is its output, and how long."""

    output: str
    seconds: float


# Of the thread that runs a unit: a Dask worker may have several.
_runs: ContextVar[list[ToolRun] | None] = ContextVar("runs", default=None)


@contextmanager
def recorded_runs() -> Iterator[list[ToolRun]]:
    """Yield a list that gets every run of a compiler until the block ends."""
    runs: list[ToolRun] = []
    token = _runs.set(runs)
    try:
        yield runs
    finally:
        _runs.reset(token)


def run_tool(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> str:
    """Run a compiler and return what it printed, standard output and error together.

    Raises:
        ToolchainError: the program cannot be started.
        CompilationError: it failed or ran out of time; the message has the command, the return
            code and the tail of its output.
    """
    shown = shlex.join(command)
    started = time.perf_counter()
    try:
        process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env={**_environment(), "LC_ALL": "C", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise ToolchainError(f"{command[0]}: cannot be started: {error.strerror}") from error
    with process:
        try:
            printed, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            kill_tree(process.pid)
            raise CompilationError(f"{shown}\nran for {timeout_s:g} s, must end sooner") from error
        except BaseException:
            kill_tree(process.pid)
            raise
    runs = _runs.get()
    if runs is not None:
        runs.append(ToolRun(output=command[-1], seconds=time.perf_counter() - started))
    if process.returncode != 0:
        tail = "\n".join(printed.splitlines()[-TAIL_LINES:])
        raise CompilationError(f"{shown}\nended with {process.returncode}:\n{tail}")
    return printed


def kill_tree(root: int) -> None:
    """Kill a process and what it started: a compiler's driver leaves the work to its children.

    They stay in the caller's process group, so that an interrupt of the build reaches them. A
    process that kills its own tree goes last.
    """
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            # Behind the command's name, which may hold spaces and parentheses: state, parent.
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    tree = [root]
    for process in tree:
        tree += [child for child, parent in parents.items() if parent == process]
    for process in sorted(tree, key=lambda process: process == os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in UNSEEN_VARIABLES}
