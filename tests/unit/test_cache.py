"""The cache of artifacts: whole entries or none, shared by many writers, bounded in size."""

from __future__ import annotations

import errno
import fcntl
import io
import multiprocessing
import os
import shutil
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewheel_build.cache import Cache, Stored, alone, entries, excess, shared, store
from tilewheel_build.cli import main
from tilewheel_build.entry import INDEX, EntryError, check, pack, read_directory, unpack

A, B, C = ("a" * 64, "b" * 64, "c" * 64)
OF_TOMORROW = '{"format": 2, "fingerprint": "", "files": {}}'
PAIRS = f'{{"format": 1, "fingerprint": "{A}", "files": [[1, ""], ["x", ""]]}}'
FILES = {"artifact.so": b"\x7fELF" * 500, "facts.json": b"{}"}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(directory=tmp_path / "cache", warn=lambda message: pytest.fail(message))


@pytest.fixture
def watched(tmp_path: Path) -> tuple[Cache, list[str]]:
    """Return a cache with one entry, and the warnings that it gives."""
    warnings: list[str] = []
    cache = Cache(directory=tmp_path / "cache", warn=warnings.append)
    store(cache.path(A), FILES)
    return cache, warnings


def test_stored_entry_is_found_and_others_are_not(cache: Cache) -> None:
    store(cache.path(A), FILES)
    assert cache.find([A, B]) == {A}
    assert (cache.path(A) / "artifact.so").read_bytes() == FILES["artifact.so"]
    assert [path.name for path in cache.directory.iterdir()] == [A]


def test_cache_that_was_moved_still_hits(cache: Cache, tmp_path: Path) -> None:
    store(cache.path(A), FILES)
    moved = tmp_path / "another" / "place"
    moved.parent.mkdir()
    cache.directory.rename(moved)
    assert Cache(directory=moved).find([A]) == {A}


def test_entry_holds_neither_time_nor_place(tmp_path: Path) -> None:
    for place in ("one", "two"):
        store(tmp_path / place / A, FILES)
    one, two = (read_directory(tmp_path / place / A) for place in ("one", "two"))
    assert pack(one) == pack(two)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("name", "damage", "problem"),
    [
        ("artifact.so", truncate, "artifact.so is not what was stored"),
        ("artifact.so", flip, "artifact.so is not what was stored"),
        ("artifact.so", Path.unlink, "lacks artifact.so"),
        ("artifact.so", make_directory, "artifact.so cannot be read: Is a directory"),
        ("facts.json", flip, "facts.json is not what was stored"),
        (INDEX, truncate, "entry.json is not readable JSON"),
        (INDEX, flip, "entry.json is not readable JSON"),
        (INDEX, Path.unlink, f"has no '{INDEX}'"),
        ("more", lambda path: path.write_text(""), "more is not what was stored"),
        (INDEX, lambda path: path.write_text("{}"), "has no 'format'"),
        (INDEX, lambda path: path.write_text("[]"), "entry.json is not readable JSON"),
        (INDEX, lambda path: path.write_text(OF_TOMORROW), "format is 2, must be 1"),
        (INDEX, lambda path: path.write_text(PAIRS), "files is a list, must be an object"),
    ],
)
def test_damaged_entry_is_a_miss_with_one_warning_and_can_be_replaced(
    watched: tuple[Cache, list[str]],
    name: str,
    damage: Callable[[Path], object],
    problem: str,
) -> None:
    cache, warnings = watched
    damage(cache.path(A) / name)
    assert cache.find([A]) == set()
    (warning,) = warnings
    assert warning.startswith(f"cache: {cache.path(A)}: ")
    assert problem in warning
    assert warning.endswith("; it is not used")
    store(cache.path(A), FILES)
    assert cache.find([A]) == {A}
    assert len(warnings) == 1
    assert [path.name for path in cache.directory.iterdir()] == [A]


@pytest.mark.parametrize("what", ["file", "empty directory", "broken link"])
def test_something_else_in_the_place_of_an_entry_is_a_miss_and_is_replaced(
    watched: tuple[Cache, list[str]], what: str
) -> None:
    cache, warnings = watched
    shutil.rmtree(cache.path(A))
    if what == "file":
        cache.path(A).write_text("")
    elif what == "broken link":
        cache.path(A).symlink_to("nowhere")
    else:
        cache.path(A).mkdir()
    assert cache.find([A]) == set()
    assert len(warnings) == 1
    store(cache.path(A), FILES)
    assert cache.find([A]) == {A}


def test_entry_of_another_fingerprint_is_a_miss(watched: tuple[Cache, list[str]]) -> None:
    cache, warnings = watched
    cache.path(A).rename(cache.path(B))
    assert cache.find([B]) == set()
    assert f"is the entry of {A}" in warnings[0]


def write_many(place: str, fingerprints: list[str], start: Any) -> None:
    start.wait()
    for fingerprint in fingerprints * 20:
        store(Path(place) / fingerprint, FILES)


def test_readers_see_whole_entries_while_processes_write_the_same_ones(cache: Cache) -> None:
    names = [A, B, C]
    for name in names:
        store(cache.path(name), FILES)
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(3)
    writers = [
        context.Process(target=write_many, args=(str(cache.directory), names, start))
        for _ in range(2)
    ]
    for writer in writers:
        writer.start()
    start.wait(timeout=60)
    rounds = 0
    while any(writer.is_alive() for writer in writers):
        # A name may be exchanged between two reads of it: what counts is that one is always there.
        assert all(cache.path(name).is_dir() for name in names)
        rounds += 1
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert rounds > 1
    assert cache.find(names) == set(names)
    assert sorted(path.name for path in cache.directory.iterdir()) == names


def test_least_recently_used_goes_first_until_the_rest_fits() -> None:
    stored = [Stored(name=n, size_bytes=10, used_s=t) for n, t in ((A, 3), (B, 1), (C, 2))]
    assert [item.name for item in excess(stored, 30)] == []
    assert [item.name for item in excess(stored, 29)] == [B]
    assert [item.name for item in excess(stored, 10)] == [B, C]
    assert [item.name for item in excess(stored, 0)] == [B, C, A]
    empty = [Stored(name=A, size_bytes=0, used_s=1)]
    assert excess(empty, 0) == empty


def test_use_keeps_an_entry_when_the_cache_is_trimmed(cache: Cache) -> None:
    for used_s, name in enumerate((A, B, C)):
        store(cache.path(name), FILES)
        os.utime(cache.path(name) / INDEX, (used_s, used_s))
    size_bytes = entries(cache.directory)[0].size_bytes
    with shared(cache.directory, 2 * size_bytes):
        assert cache.find([A]) == {A}
    assert cache.find([A, B, C]) == {A, C}


def test_trimming_removes_what_killed_builds_left_and_touches_nothing_else(cache: Cache) -> None:
    store(cache.path(A), FILES)
    (cache.directory / ".new-killed").mkdir()
    (cache.directory / "zig").mkdir()
    with shared(cache.directory, 1 << 30):
        pass
    assert sorted(path.name for path in cache.directory.iterdir()) == [A, "zig"]


def test_what_cannot_be_removed_is_not_called_removed(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store(cache.path(A), FILES)

    def refuse(path: Path, **_: object) -> None:
        """Remove nothing, as where the directory is another's."""

    monkeypatch.setattr(shutil, "rmtree", refuse)
    place = str(cache.directory)
    assert main(["cache", "clear", "--place", place]) == 2
    printed = capsys.readouterr()
    assert printed.out == f"{place}: 0 entries removed, 0.0 MiB\n"
    assert printed.err == f"--place: {place}: 1 entries cannot be removed\n"


def test_file_is_no_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for action in ("info", "clear"):
        assert main(["cache", action, "--place", str(file)]) == 2
        assert capsys.readouterr().err == f"--place: {file} is a file, must be a directory\n"


def test_full_disk_names_the_entry(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(OSError, match="No space left on device") as caught:
        store(cache.path(A), FILES)
    assert caught.value.filename == str(cache.path(A))
    assert list(cache.directory.glob(".new-*")) == []


def test_nothing_is_removed_while_another_build_uses_the_cache(cache: Cache) -> None:
    store(cache.path(A), FILES)
    with shared(cache.directory, 0):
        with shared(cache.directory, 0):
            pass
        assert cache.find([A]) == {A}
    assert cache.find([A]) == set()


def test_who_wants_the_cache_alone_waits_for_builds(cache: Cache) -> None:
    waited = threading.Event()
    order: list[str] = []

    def clear() -> None:
        with alone(cache.directory, waits=waited.set):
            order.append("alone")

    with shared(cache.directory, 1 << 30):
        thread = threading.Thread(target=clear)
        thread.start()
        assert waited.wait(10)
        order.append("build")
    thread.join(10)
    assert order == ["build", "alone"]


def test_directory_that_cannot_be_locked_is_used_without(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no locks here")

    store(cache.path(A), FILES)
    monkeypatch.setattr(fcntl, "flock", refuse)
    with shared(cache.directory, 0):
        assert cache.find([A]) == {A}


def test_unpack_gives_what_pack_took() -> None:
    assert unpack(pack(FILES)) == FILES


def test_object_that_is_cut_off_anywhere_is_refused() -> None:
    content = pack(FILES)
    for length in range(len(content)):
        with pytest.raises(EntryError):
            unpack(content[:length])


def test_object_with_any_byte_changed_is_refused_or_the_same(tmp_path: Path) -> None:
    store(tmp_path / A, FILES)
    files = read_directory(tmp_path / A)
    content = pack(files)
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 0x5A
        try:
            found = unpack(bytes(changed))
            check(found, A)
        except EntryError:
            continue
        assert found == files, position


@pytest.mark.parametrize("name", ["../up", "/root", "a/b", "..", "a\\b"])
def test_object_with_a_path_in_it_is_refused(name: str) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, "x")
    with pytest.raises(EntryError, match="must hold plain file names"):
        unpack(buffer.getvalue())
