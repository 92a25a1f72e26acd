"""The command ``tilewheel``, also ``python -m tilewheel``."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Sequence

from tilewheel import cli
from tilewheel.log import logger


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command, print what it says, and exit with its code."""
    # What the log would warn of, the commands say themselves.
    logger.addHandler(logging.NullHandler())
    arguments = cli.parser().parse_args(argv)
    try:
        outcome: cli.Outcome = arguments.run(arguments)
    except KeyboardInterrupt:
        sys.exit(cli.INTERRUPTED)
    _print(json.dumps(outcome.tree, indent=1) if arguments.json else outcome.text)
    sys.exit(outcome.code)


def _print(text: str) -> None:
    """Print all of the text, or exit."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path may hold bytes, and a message characters, that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, flush=True)
    except OSError as error:
        # What is left in the buffer would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # a reader such as `head` left early
            sys.exit(cli.BROKEN_PIPE)
        sys.exit(f"standard output: cannot be written: {error.strerror}")


if __name__ == "__main__":
    main()
