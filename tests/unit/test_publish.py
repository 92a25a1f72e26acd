"""Publishing: the directory is the old one or the new one, whatever happens in between."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewheel.manifest import Manifest
from tilewheel_build.publish import lock, publish

Make = Callable[..., Manifest]


def contents(directory: Path) -> dict[str, str]:
    return {
        path.relative_to(directory).as_posix(): path.read_text()[:1]
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str], dict[str, Path]]:
    """Return the function that makes two files to publish, each with the given content."""

    def make(content: str) -> dict[str, Path]:
        source = tmp_path / f"source-{content}"
        source.write_text(content)
        return {"sm_90a/a.so": source, "sm_90a/a.cu": source}

    return make


OLD = {"manifest.json": "{", "sm_90a/a.so": "1", "sm_90a/a.cu": "1"}
NEW = {"manifest.json": "{", "sm_90a/a.so": "2", "sm_90a/a.cu": "2"}


@pytest.fixture
def target(tmp_path: Path, manifest: Make, files: Callable[[str], dict[str, Path]]) -> Path:
    """Return a directory to which the old files are published."""
    directory = tmp_path / "artifacts" / "cuda"
    publish(directory, manifest(), files("1"))
    return directory


def test_first_publication_makes_the_directory(target: Path) -> None:
    assert contents(target) == OLD
    assert sorted(path.name for path in target.parent.iterdir()) == [".lock", "cuda"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0])
def test_directory_and_artifact_can_be_read_by_all(
    tmp_path: Path, manifest: Make, files: Callable[[str], dict[str, Path]], umask: int
) -> None:
    target = tmp_path / "artifacts" / "cuda"
    before = os.umask(umask)
    try:
        publish(target, manifest(), files("1"))
    finally:
        os.umask(before)
    modes = {
        path.relative_to(target.parent).as_posix(): oct(path.stat().st_mode & 0o777)
        for path in (target, *target.rglob("*"))
    }
    assert modes == {
        "cuda": "0o755",
        "cuda/manifest.json": "0o644",
        "cuda/sm_90a": "0o755",
        "cuda/sm_90a/a.cu": "0o644",
        "cuda/sm_90a/a.so": "0o755",
    }


def test_waiting_for_a_lock_is_told(tmp_path: Path) -> None:
    told = threading.Event()
    order = []

    def second() -> None:
        with (tmp_path / "file").open() as file:
            lock(file.fileno(), waits=told.set)
            order.append("second")

    with (tmp_path / "file").open("w") as file:
        lock(file.fileno(), waits=lambda: order.append("waited"))
        thread = threading.Thread(target=second)
        thread.start()
        told.wait()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_later_publication_replaces_every_file(
    target: Path, manifest: Make, files: Callable[[str], dict[str, Path]]
) -> None:
    (target / "stray").write_text("s")
    publish(target, manifest(), files("2"))
    assert contents(target) == NEW
    assert sorted(path.name for path in target.parent.iterdir()) == [".lock", "cuda"]


@pytest.mark.parametrize("name", ["copyfile", "rmtree"])
def test_failure_while_copying_leaves_the_old_files(
    target: Path,
    manifest: Make,
    files: Callable[[str], dict[str, Path]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    (target.parent / ".cuda-stale").mkdir()

    def fail(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, name, fail)
        with pytest.raises(KeyboardInterrupt):
            publish(target, manifest(), files("2"))
    assert contents(target) == OLD
    publish(target, manifest(), files("2"))
    assert contents(target) == NEW
    assert sorted(path.name for path in target.parent.iterdir()) == [".lock", "cuda"]


class _NoExchange:
    """A C library whose renameat2 fails with the given error."""

    def __init__(self, code: int) -> None:
        self.code = code

    def renameat2(self, *arguments: object) -> int:
        ctypes.set_errno(self.code)
        return -1


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS])
def test_file_system_without_exchange_is_served_by_renames(
    target: Path,
    manifest: Make,
    files: Callable[[str], dict[str, Path]],
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: _NoExchange(code))
    publish(target, manifest(), files("2"))
    assert contents(target) == NEW
    assert sorted(path.name for path in target.parent.iterdir()) == [".lock", "cuda"]


def test_other_error_of_the_exchange_is_raised_and_changes_nothing(
    target: Path,
    manifest: Make,
    files: Callable[[str], dict[str, Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", lambda *_, **__: _NoExchange(errno.EACCES))
        with pytest.raises(PermissionError):
            publish(target, manifest(), files("2"))
    assert contents(target) == OLD


def test_failure_between_the_two_renames_puts_the_old_files_back(
    target: Path,
    manifest: Make,
    files: Callable[[str], dict[str, Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rename = os.rename

    def stop(source: Any, destination: Any) -> None:
        if Path(destination) == target and not str(source).endswith("-old"):
            raise OSError(errno.EIO, "stopped")
        rename(source, destination)

    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", lambda *_, **__: _NoExchange(errno.EINVAL))
        patch.setattr(os, "rename", stop)
        with pytest.raises(OSError, match="stopped"):
            publish(target, manifest(), files("2"))
    assert contents(target) == OLD


def test_publications_at_once_leave_one_of_them_complete(
    target: Path, manifest: Make, files: Callable[[str], dict[str, Path]]
) -> None:
    made = [files(str(i)) for i in range(8)]
    threads = [threading.Thread(target=publish, args=(target, manifest(), m)) for m in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = contents(target)
    assert len(found) == 3
    assert found["sm_90a/a.so"] == found["sm_90a/a.cu"]
    assert sorted(path.name for path in target.parent.iterdir()) == [".lock", "cuda"]
