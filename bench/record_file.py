"""Writes a file of records, one JSON line each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def record_file(path: Path) -> Iterator[Callable[[Mapping[str, object]], None]]:
    """Yield a function that adds a record to ``path``.

    An old file is replaced at the end: who is interrupted keeps it, and has the new records in
    ``<path>.part``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("w") as file:

        def write(record: Mapping[str, object]) -> None:
            file.write(json.dumps(record) + "\n")
            file.flush()

        yield write
    part.replace(path)
