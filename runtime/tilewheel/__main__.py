"""The command ``tilewheel``, also ``python -m tilewheel``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from tilewheel import cli


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command, print what it says, and exit with its code."""
    arguments = cli.parser().parse_args(argv)
    outcome: cli.Outcome = arguments.run(arguments)
    print(json.dumps(outcome.tree, indent=1) if arguments.json else outcome.text)
    sys.exit(outcome.code)


if __name__ == "__main__":
    main()
