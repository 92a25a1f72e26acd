"""The command ``tilewheel``, also ``python -m tilewheel``."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence

from tilewheel import cli
from tilewheel.log import logger


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command, print what it says, and exit with its code."""
    # What the log would warn of, the commands say themselves.
    logger.addHandler(logging.NullHandler())
    arguments = cli.parser().parse_args(argv)
    outcome: cli.Outcome = arguments.run(arguments)
    print(json.dumps(outcome.tree, indent=1) if arguments.json else outcome.text)
    sys.exit(outcome.code)


if __name__ == "__main__":
    main()
