"""Writing ``out/artifacts/<backend>``: the whole directory changes at once, or not at all."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tilewheel.manifest import FILE_NAME, Manifest, dump

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def publish(directory: Path, manifest: Manifest, files: Mapping[str, Path]) -> None:
    """Replace ``directory`` by one that holds the manifest and ``files`` (relative path -> source).

    A build that is killed at any point leaves the old directory or the new one.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.parent / ".lock"):
        for stale in directory.parent.glob(f".{directory.name}-*"):
            shutil.rmtree(stale, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        try:
            for name, source in files.items():
                target = staging / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                if target.suffix == ".so":
                    target.chmod(0o755)
            (staging / FILE_NAME).write_text(dump(manifest))
            staging.chmod(0o755)
            _exchange(staging, directory)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _exchange(new: Path, old: Path) -> None:
    """Put ``new`` in the place of ``old``, which then has the name ``new`` if it existed."""
    if not old.exists():
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
