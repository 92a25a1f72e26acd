"""Progress of real builds: on a terminal, in a pipe, when it is interrupted."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

STAGE = "stage-hidden=16384-cuda-sm_90a"
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
WIDTH = 100


class Terminal:
    """A terminal that a build has for its standard error, and to be interrupted from."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, WIDTH, 0, 0))
        self.before = termios.tcgetattr(slave)

        def take() -> None:
            # A test run in the background of a shell ignores interrupts, and children inherit that.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=slave,
            start_new_session=True,
            preexec_fn=take,
        )
        self.slave = slave
        self.shown = ""

    def read_until(self, condition: Any) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, self.shown
            if select.select([self.master], [], [], 0.1)[0]:
                self.shown += os.read(self.master, 1 << 16).decode(errors="replace")

    def end(self) -> str:
        """Wait for the build; return what it printed on standard output."""
        assert self.process.stdout is not None
        self.read_until(lambda: self.process.poll() is not None)
        while select.select([self.master], [], [], 0.2)[0]:
            self.shown += os.read(self.master, 1 << 16).decode(errors="replace")
        printed = self.process.stdout.read().decode()
        assert termios.tcgetattr(self.slave) == self.before
        os.close(self.slave)
        os.close(self.master)
        return printed


def terminal(checkout: Any, *arguments: str) -> Terminal:
    """Start a build of ``stage``, which has to be built, with a terminal of its own."""
    kernel = checkout.kernel("stage_cuda.py")
    noise = "import os\nos.write(1, b'noise 1\\n')\nos.write(2, b'\\x1b[31mnoise 2\\n')\n"
    kernel.write_text(kernel.read_text().replace("import", noise + "import", 1))
    root = Path(__file__).parents[2]
    variables = {
        name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")
    }
    paths = [str(root / "runtime"), str(root / "build")]
    variables |= {"TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(paths)}
    return Terminal(checkout.command("build", "--only", "stage*", *arguments), variables)


def plain(shown: str) -> str:
    """Return what was written to a terminal without its control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


def test_terminal_shows_what_runs_and_stays_whole(copy: Any) -> None:
    build = terminal(copy, "--json")
    printed = build.end()
    assert build.process.returncode == 0, build.shown
    # Standard output has the report and nothing else, whatever a kernel writes there.
    assert [item["key"] for item in json.loads(printed)["artifacts"]] == [STAGE]
    assert build.shown.count(HIDE) == build.shown.count(SHOW) == 1
    lines = re.split(r"[\r\n]+", plain(build.shown))
    assert "noise 1" in lines
    assert "noise 2" in lines
    assert any(re.fullmatch(rf"  {STAGE} +\d+ s *", line) for line in lines), lines
    assert any(re.fullmatch(r"cuda ━+ 0/1, \d+ s *", line) for line in lines), lines
    assert re.fullmatch(r"cuda: 1/1, \d+ s", [line for line in lines if line][-1])
    assert max(map(len, lines)) <= WIDTH


def test_interrupt_from_the_terminal_leaves_it_as_it_was(copy: Any) -> None:
    shutil.rmtree(copy.out / "work", ignore_errors=True)
    before = copy.published()
    build = terminal(copy)
    source = copy.out / "work" / STAGE / "kernel.cu"
    build.read_until(lambda: source.exists() or build.process.poll() is not None)
    os.write(build.master, b"\x03")
    build.end()
    assert build.process.returncode == 130, build.shown
    assert build.shown.rindex(SHOW) > build.shown.rindex(HIDE)
    assert "Traceback" not in build.shown
    assert copy.published() == before


def compiling(out: Path) -> list[str]:
    """Return the compilers that work in an output directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile, or is another's
            if (process / "cwd").resolve().is_relative_to(out / "work"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def test_build_that_is_terminated_gives_the_terminal_back_and_ends_its_compilers(copy: Any) -> None:
    shutil.rmtree(copy.out / "work", ignore_errors=True)
    before = copy.published()
    build = terminal(copy)
    build.read_until(lambda: compiling(copy.out) or build.process.poll() is not None)
    build.process.terminate()
    build.end()
    assert build.process.returncode == 143, build.shown
    assert build.shown.rindex(SHOW) > build.shown.rindex(HIDE)
    assert "Traceback" not in build.shown
    assert not compiling(copy.out)
    assert copy.published() == before


@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1", "TERM": "xterm"}])
def test_pipe_gets_plain_lines(copy: Any, variables: dict[str, str]) -> None:
    kernel = copy.kernel("stage_cuda.py")
    kernel.write_text(kernel.read_text() + f"\n# changed {variables}\n")
    done = copy.run("build", **variables)
    assert done.returncode == 0, done.stderr
    first, second = done.stderr.splitlines()
    assert first == "cuda: 2 of 3 from the cache, 1 to do"
    assert re.fullmatch(rf"built   {STAGE}  \d+\.\d s, 3/3", second)
    assert done.stdout.splitlines()[-2:] == [
        f"report: {copy.out}/report.html",
        "3 artifacts (2 from the cache), 0 failed",
    ]
