"""Entry point of ``python -m tilewheel_build``."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType

# As for a program that SIGINT, SIGPIPE or SIGTERM ends.
_INTERRUPTED, _BROKEN_PIPE, _TERMINATED = 130, 141, 143


def _end(number: int, frame: FrameType | None) -> None:
    # Not at once: a live display gives the terminal back, and workers are ended.
    sys.exit(_TERMINATED)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A path may hold what the terminal's encoding does not, as standard error shows it.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from tilewheel_build.cli import main

        code = main(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
        sys.exit(code)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # A reader such as `head` left early; what is left in the buffer would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_BROKEN_PIPE)
