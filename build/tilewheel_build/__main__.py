"""Entry point of ``python -m tilewheel_build``."""

from __future__ import annotations

import sys

from tilewheel_build.cli import main

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
