"""Writing ``out/artifacts/<backend>``: the whole directory changes at once, or not at all."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from tilewheel.manifest import FILE_NAME, Manifest, dump

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def publish(
    directory: Path,
    manifest: Manifest,
    files: Mapping[str, Path],
    texts: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Replace ``directory`` by one that holds the manifest and ``files`` (relative path -> source).

    ``texts`` are more files, given by their content.
    A build that is killed at any point leaves the old directory or the new one.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / ".lock").open("w") as file:
        lock(file.fileno())
        for stale in directory.parent.glob(f".{directory.name}-*"):
            shutil.rmtree(stale, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        try:
            for name, source in files.items():
                target = staging / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
            for name, text in {**texts, FILE_NAME: dump(manifest)}.items():
                (staging / name).write_text(text)
            _set_modes(staging)
            exchange(staging, directory)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a file; a reader sees what was there before or all of ``text``.

    A link or a device, ``/dev/stdout`` say, is written to and not replaced.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _set_modes(directory: Path) -> None:
    """Let everyone read what is published, whatever the builder's umask is."""
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.suffix == ".so" else 0o644)


def lock(descriptor: int, *, waits: Callable[[], None] = lambda: None) -> None:
    """Lock a file or directory until it is closed; ``waits`` is called if another has the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waits()
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def exchange(new: Path, old: Path) -> None:
    """Put ``new`` in the place of ``old``, which then has the name ``new`` if it existed."""
    if not os.path.lexists(old):
        os.rename(new, old)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    renameat2 = getattr(libc, "renameat2", None)
    if renameat2 is not None:
        done = renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE)
        if done == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(code, os.strerror(code), str(old))
    # A file system without atomic exchange: the gap is two renames long.
    aside = new.with_name(new.name + "-old")
    os.rename(old, aside)
    try:
        os.rename(new, old)
    except BaseException:
        os.rename(aside, old)
        raise
    os.rename(aside, new)
