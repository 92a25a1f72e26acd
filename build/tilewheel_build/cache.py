"""The cache of built artifacts, keyed by fingerprint: a local directory, then a shared place.

An entry is a directory ``<cache>/<fingerprint>``. It appears as a whole, by a rename, is compared
with its index on every read, and is used as it is or not at all. A build holds the directory's lock
together with other builds; only who holds it alone removes entries.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tilewheel_build.entry import INDEX, EntryError, check, index_of, pack, read_directory, unpack
from tilewheel_build.publish import exchange

if TYPE_CHECKING:
    from tilewheel_build.remote_cache import RemoteCache

DEFAULT_LIMIT_BYTES = 4 << 30
"""What entries of the local cache may take where the caller does not say."""

Level = Literal["local", "remote"]

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_STAGING = ".new-"
_REQUESTS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An entry as eviction sees it: when it was last used, in seconds since the epoch."""

    name: str
    size_bytes: int
    used_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Where finished units are kept. ``warn`` gets a line for each entry that is no good."""

    directory: Path
    remote: RemoteCache | None = None
    warn: Callable[[str], None] = lambda message: None

    def path(self, fingerprint: str) -> Path:
        """Return where the entry of a fingerprint is, or would be."""
        return self.directory / fingerprint

    def find(self, fingerprints: Sequence[str]) -> set[str]:
        """Return which entries are there and right, after fetching what only the remote has."""
        return set(self.locate(fingerprints))

    def locate(self, fingerprints: Sequence[str]) -> dict[str, Level]:
        """Return what ``find`` does, with the level that had each entry."""
        found: dict[str, Level] = {name: "local" for name in fingerprints if self._is_right(name)}
        missing = [name for name in fingerprints if name not in found]
        if self.remote is not None and missing:
            with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
                for name, fetched in zip(missing, pool.map(self._fetch, missing), strict=True):
                    if fetched:
                        found[name] = "remote"
        return found

    def _is_right(self, fingerprint: str) -> bool:
        path = self.path(fingerprint)
        if not os.path.lexists(path):
            return False
        try:
            check(read_directory(path), fingerprint)
        except EntryError as error:
            self.warn(f"cache: {path}: {error}; it is not used")
            return False
        with suppress(OSError):  # a cache that cannot be written to forgets what was used
            os.utime(path / INDEX)
        return True

    def _fetch(self, fingerprint: str) -> bool:
        assert self.remote is not None
        content = self.remote.get(fingerprint)
        if content is None:
            return False
        try:
            files = unpack(content)
            check(files, fingerprint)
        except EntryError as error:
            self.warn(f"cache: {self.remote.place(fingerprint)}: {error}; it is not used")
            return False
        store_entry(self.path(fingerprint), files)
        self.remote.mark_used(fingerprint, content)
        return True

    def share(self, fingerprint: str) -> None:
        """Copy an entry that was just built to the remote, if there is one."""
        if self.remote is None:
            return
        try:
            self.remote.put(fingerprint, pack(read_directory(self.path(fingerprint))))
        except EntryError as error:  # someone removed it meanwhile
            self.warn(f"cache: {self.path(fingerprint)}: {error}")


def store(entry: Path, files: Mapping[str, bytes]) -> None:
    """Put the files of a unit into the cache as ``entry``, whose name is the fingerprint.

    Whatever is there already is replaced: another process has built the same, or it is broken.
    """
    store_entry(entry, {**files, INDEX: index_of(files, entry.name)})


def store_entry(entry: Path, files: Mapping[str, bytes]) -> None:
    """Put an entry that has its index already into the cache."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    staging = entry.with_name(_STAGING + uuid.uuid4().hex)
    try:
        staging.mkdir()
        for name, content in files.items():
            (staging / name).write_bytes(content)
        try:
            os.rename(staging, entry)
        except OSError:
            # In the way is an entry, or what is left of one. Readers see the old or the new.
            _replace(staging, entry)
    except OSError as error:
        if error.filename is None:  # a disk that is full does not say which
            error.filename = str(entry)
        raise
    finally:
        _remove(staging)


def _replace(staging: Path, entry: Path) -> None:
    try:
        exchange(staging, entry)
    except OSError as error:
        # Where a file system has no atomic exchange, another process may have been between.
        try:
            check(read_directory(entry), entry.name)
        except EntryError:
            raise error from None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def shared(directory: Path, limit_bytes: int) -> Iterator[None]:
    """Use the cache together with other builds; afterwards the last of them bounds its size."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # a network file system may lock no directories
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # another build reads entries; it does this when it ends
        trim(directory, limit_bytes)
    finally:
        os.close(descriptor)


@contextmanager
def alone(directory: Path, *, waits: Callable[[], None]) -> Iterator[None]:
    """Hold the cache's lock alone; ``waits`` is called if a build has it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # as above
        yield
    finally:
        os.close(descriptor)


def entries(directory: Path) -> list[Stored]:
    """Return what the local cache holds, the least recently used first."""
    found = []
    with suppress(OSError):
        for path in directory.iterdir():
            if _FINGERPRINT.fullmatch(path.name):
                found.append(_stored(path))
    return sorted(found, key=lambda item: (item.used_s, item.name))


def _stored(path: Path) -> Stored:
    size_bytes, used_s = 0, 0.0
    with suppress(OSError):
        for file in path.iterdir() if path.is_dir() else [path]:
            status = file.lstat()
            size_bytes += status.st_size
            if file.name == INDEX:
                used_s = status.st_mtime
    return Stored(name=path.name, size_bytes=size_bytes, used_s=used_s)


def excess(stored: Sequence[Stored], limit_bytes: int) -> list[Stored]:
    """Return what must go, the least recently used first, so that the rest fits the limit.

    A limit of 0 leaves nothing, not even what takes no room.
    """
    total = sum(item.size_bytes for item in stored)
    gone = []
    for item in sorted(stored, key=lambda item: (item.used_s, item.name)):
        if total <= limit_bytes and limit_bytes > 0:
            break
        total -= item.size_bytes
        gone.append(item)
    return gone


def trim(directory: Path, limit_bytes: int) -> list[Stored]:
    """Remove the least recently used entries beyond the limit; the caller holds the lock alone.

    Return what is gone: not what this process may not remove.
    """
    for stale in directory.glob(f"{_STAGING}*"):
        _remove(stale)  # of a build that was killed: none that lives is here
    gone = []
    for item in excess(entries(directory), limit_bytes):
        _remove(directory / item.name)
        if not os.path.lexists(directory / item.name):
            gone.append(item)
    return gone
