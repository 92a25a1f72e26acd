"""What the words of the command line mean; one that means nothing is refused by argparse."""

from __future__ import annotations

import argparse
import math
import re

from tilewheel_build.shard import Shard

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = ("", "K", "M", "G", "T")


def jobs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text!r}, must be an integer of at least 1")
    return int(text)


def shard(text: str) -> Shard:
    try:
        return Shard.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"is {text!r}, must be a number above 0")
    return value


def size(text: str) -> int:
    """Return the bytes that ``500M`` or ``1.5 GiB`` means; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"is {text!r}, must be a size such as 500M or 4GiB")
    return int(float(match[1]) * 1024 ** _UNITS.index(match[2].upper()))
