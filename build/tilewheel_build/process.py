"""Running compilers: the only place that starts a subprocess."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewheel_build.errors import CompilationError, ToolchainError

TAIL_LINES = 30

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


def run_tool(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600,
) -> str:
    """Run a compiler and return what it printed, standard output and error together.

    Raises:
        ToolchainError: the program cannot be started.
        CompilationError: it failed or ran out of time; the message has the command, the return
            code and the tail of its output.
    """
    shown = shlex.join(command)
    try:
        done = subprocess.run(
            list(command),
            cwd=cwd,
            env={**_environment(), "LC_ALL": "C", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CompilationError(f"{shown}\nran for {timeout_s:.0f} s, must end sooner") from error
    except OSError as error:
        raise ToolchainError(f"{command[0]}: cannot be started: {error.strerror}") from error
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-TAIL_LINES:])
        raise CompilationError(f"{shown}\nended with {done.returncode}:\n{tail}")
    return done.stdout


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in UNSEEN_VARIABLES}
