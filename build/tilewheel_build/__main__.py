"""Entry point of ``python -m tilewheel_build``."""

from __future__ import annotations

import os
import sys

# As for a program that SIGINT or SIGPIPE ends.
_INTERRUPTED, _BROKEN_PIPE = 130, 141

if __name__ == "__main__":
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
