"""The second level of the cache: entries as objects at any URL that fsspec opens.

An entry is ``<url>/<first two digits>/<fingerprint>.zip``. Whoever may write there decides what
builds take from it: hashes show damage, not malice. Reading and writing never fail a build.
"""

from __future__ import annotations

import datetime as dt
import importlib
import re
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tilewheel_build.cache import Stored, excess
from tilewheel_build.errors import OptionError, ToolchainError

SUFFIX = ".zip"

# What is removed is an entry, or what a killed build left of one: the place may hold other things.
_OWN = re.compile(r"[0-9a-f]{2}/([0-9a-f]{64}\.zip|\.[0-9a-f]{32})")

REFRESH_S = 24 * 3600.0
"""Objects have no time of last use: one older than this is written again when it is used."""

_HINT = "hint: python -m pip install -r requirements-dev.txt"


class RemoteCache:
    """Entries at a URL; safe to use from many threads.

    After a read that failed, other than for want of the entry, it is left alone; after a write that
    failed it is only read, as by those who may not write.
    """

    def __init__(self, url: str, warn: Callable[[str], None] = lambda message: None) -> None:
        self._files, self._root = _open(url)
        self._warn = warn
        self._lock = threading.Lock()
        self._failed: set[str] = set()
        protocol = self._files.protocol
        self._protocols = {protocol} if isinstance(protocol, str) else set(protocol)

    def __str__(self) -> str:
        """Return the URL, without a password that it may hold."""
        return _shown(self._files.unstrip_protocol(self._root))

    def place(self, fingerprint: str) -> str:
        """Return the URL of an entry."""
        return _shown(self._files.unstrip_protocol(self._path(fingerprint)))

    def _path(self, fingerprint: str) -> str:
        return f"{self._root}/{fingerprint[:2]}/{fingerprint}{SUFFIX}"

    def get(self, fingerprint: str) -> bytes | None:
        """Return the object of an entry, or None where there is none to be had."""
        content = self._try("read", lambda: self._files.cat_file(self._path(fingerprint)))
        return content if isinstance(content, bytes) else None

    def put(self, fingerprint: str, content: bytes) -> None:
        """Write the object of an entry, over another if there is one."""
        self._try("written", lambda: self._write(self._path(fingerprint), content))

    def mark_used(self, fingerprint: str, content: bytes) -> None:
        """Make an entry that was just read one of the recently used."""
        path = self._path(fingerprint)

        def refresh() -> None:
            with suppress(FileNotFoundError):  # someone removed it meanwhile
                if time.time() - _seconds(self._files.modified(path)) > REFRESH_S:
                    self._write(path, content)

        self._try("written", refresh)

    def _write(self, path: str, content: bytes) -> None:
        if "file" not in self._protocols:
            # One request, and an object store shows the whole object or none.
            self._pipe(path, content)
            return
        staging = f"{self._files._parent(path)}/.{uuid.uuid4().hex}"
        try:
            self._pipe(staging, content)
            self._files.mv(staging, path)
        finally:
            if self._files.exists(staging):
                self._files.rm_file(staging)

    def _pipe(self, path: str, content: bytes) -> None:
        try:
            self._files.pipe_file(path, content)
        except FileNotFoundError:
            # A directory is lacking. A bucket may be as well, which is not made from a URL.
            is_own = not self._protocols.isdisjoint({"file", "memory"})
            if not is_own and not self._files.exists(self._root):
                raise
            self._files.makedirs(self._files._parent(path), exist_ok=True)
            self._files.pipe_file(path, content)

    def _try(self, what: str, action: Callable[[], object]) -> object:
        if not self._failed.isdisjoint({"read", what}):
            return None
        try:
            return action()
        except FileNotFoundError:
            if what == "read":
                return None
            reason = "it has no such bucket or directory"
        except Exception as error:  # each file system raises types of its own
            reason = f"{type(error).__name__}: {error}"
        with self._lock:
            if what not in self._failed:
                self._failed.add(what)
                text = f"cache: {self}: cannot be {what}: {_shown(reason)}; going on without it"
                self._warn(text)
        return None

    def entries(self) -> list[Stored]:
        """Return all entries, the least recently used first; raises OptionError if unreachable."""
        try:
            self._files.invalidate_cache()
            found = self._files.find(self._root, detail=True)
            stored = [
                Stored(
                    name=path,
                    size_bytes=int(info["size"] or 0),
                    used_s=_seconds(self._files.modified(path)),
                )
                for path, info in found.items()
                if _OWN.fullmatch(path.removeprefix(f"{self._root}/"))
            ]
        except FileNotFoundError:
            return []
        except Exception as error:
            raise OptionError(
                f"{self}: cannot be listed: {type(error).__name__}: {error}"
            ) from error
        return sorted(stored, key=lambda item: (item.used_s, item.name))

    def trim(self, limit_bytes: int) -> list[Stored]:
        """Remove the least recently used entries beyond the limit."""
        gone = excess(self.entries(), limit_bytes)
        for item in gone:
            try:
                self._files.rm_file(item.name)
            except FileNotFoundError:
                pass  # another one removed it
            except Exception as error:
                raise OptionError(
                    f"{self}: cannot be removed from: {type(error).__name__}: {error}"
                ) from error
        return gone


def _shown(text: str) -> str:
    return re.sub(r"//[^/@\s]*@", "//", text)


def _open(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it."""
    shown = _shown(url)
    try:
        fsspec = importlib.import_module("fsspec")
    except ImportError as error:
        raise ToolchainError(f"{shown}: needs fsspec, which is not installed\n{_HINT}") from error
    try:
        files, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise ToolchainError(f"{shown}: {error}\n{_HINT}") from error
    except Exception as error:
        raise OptionError(f"{shown}: is not a URL that fsspec opens: {error}") from error
    root = str(root).rstrip("/")
    if not root:
        raise OptionError(f"{shown}: is a whole file system, must name a directory or bucket in it")
    return files, root


def _seconds(moment: Any) -> float:
    if isinstance(moment, dt.datetime):
        # A time without zone is UTC in every file system that gives one.
        aware = moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)
        return aware.timestamp()
    return float(moment)
