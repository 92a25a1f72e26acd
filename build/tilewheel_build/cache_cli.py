"""The cache on the command line: ``cache info | clear | trim``, and a build's options for it."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tilewheel_build.cache import (
    DEFAULT_LIMIT_BYTES,
    Cache,
    Stored,
    alone,
    entries,
    excess,
    shared,
    trim,
)
from tilewheel_build.errors import OptionError
from tilewheel_build.option_types import size
from tilewheel_build.remote_cache import RemoteCache


def add_build_options(command: argparse.ArgumentParser) -> None:
    """Add the options that say which caches a build uses."""
    command.add_argument("--cache", type=Path, metavar="DIR", help="default: <out>/cache")
    command.add_argument(
        "--cache-limit",
        type=size,
        default=DEFAULT_LIMIT_BYTES,
        metavar="SIZE",
        help="what its entries may take, e.g. 500M; the least recently used go (default: 4G)",
    )
    command.add_argument(
        "--remote-cache",
        metavar="URL",
        help="a second level for what the first lacks, any URL of fsspec: s3://bucket/directory",
    )


def add_command_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cache``."""
    command.add_argument("action", choices=("info", "clear", "trim"))
    command.add_argument(
        "--place", help="a directory, or a URL that fsspec opens (default: <out>/cache)"
    )
    command.add_argument(
        "--limit",
        type=size,
        metavar="SIZE",
        help="what trim leaves, e.g. 20G: the most recently used",
    )


@contextmanager
def cache_of(
    options: argparse.Namespace, out: Path, warn: Callable[[str], None]
) -> Iterator[Cache]:
    """Yield the cache that a build was told to use, locked together with other builds."""
    directory = (options.cache or out / "cache").resolve()
    remote = RemoteCache(options.remote_cache, warn) if options.remote_cache else None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise OptionError(
            f"--cache: {directory} cannot be written: {error.strerror}\n"
            "hint: choose another directory with --cache"
        ) from error
    with shared(directory, options.cache_limit):
        yield Cache(directory=directory, remote=remote, warn=warn)


def run(options: argparse.Namespace, out: Path, report: Callable[[str], None]) -> None:
    """Run ``cache``; ``report`` gets what is worth knowing on the way."""
    place = options.place or str(out / "cache")
    limit_bytes = 0 if options.action == "clear" else options.limit
    if (options.limit is not None) != (options.action == "trim"):
        state = "missing, must be given" if options.limit is None else "given, must not be"
        raise OptionError(f"--limit: is {state} with {options.action}")
    if "://" in place:
        remote = RemoteCache(place)
        if options.action == "info":
            print(_summary(str(remote), remote.entries()))
        else:
            print(_removed(str(remote), remote.trim(limit_bytes)))
        return
    directory = Path(place).resolve()
    if directory.exists() and not directory.is_dir():
        raise OptionError(f"--place: {directory} is a file, must be a directory")
    if options.action == "info":
        print(_summary(str(directory), entries(directory)))
        return
    if not directory.is_dir():
        print(_removed(str(directory), []))
        return
    with alone(directory, waits=lambda: report(f"{directory}: a build uses it, waiting for it")):
        print(_removed(str(directory), trim(directory, limit_bytes)))
        if left := excess(entries(directory), limit_bytes):
            raise OptionError(f"--place: {directory}: {len(left)} entries cannot be removed")


def _summary(place: str, stored: Sequence[Stored]) -> str:
    return f"{place}: {len(stored)} entries, {_mib(stored)}"


def _removed(place: str, gone: Sequence[Stored]) -> str:
    return f"{place}: {len(gone)} entries removed, {_mib(gone)}"


def _mib(stored: Sequence[Stored]) -> str:
    return f"{sum(item.size_bytes for item in stored) / (1 << 20):.1f} MiB"
