"""The second level of the cache: what a build takes from it, and what it never suffers from it."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tilewheel_build.cache import Cache, store
from tilewheel_build.entry import unpack
from tilewheel_build.errors import OptionError
from tilewheel_build.remote_cache import REFRESH_S, RemoteCache

fsspec = pytest.importorskip("fsspec")

A, B = "a" * 64, "b" * 64
FILES = {"artifact.so": b"\x7fELF" * 500, "facts.json": b"{}"}


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return a URL below which nothing is yet."""
    if request.param == "file":
        yield f"file://{tmp_path}/shared/deeper"
        return
    root = f"/{uuid.uuid4().hex}"
    yield f"memory:/{root}/deeper"
    with suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm(root, recursive=True)


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def cache(url: str, tmp_path: Path, warnings: list[str]) -> Callable[[str], Cache]:
    """Return the function that makes a local cache of some name, with the same second level."""

    def make(name: str) -> Cache:
        remote = RemoteCache(url, warnings.append)
        return Cache(directory=tmp_path / name, remote=remote, warn=warnings.append)

    return make


@pytest.fixture
def shared(cache: Callable[[str], Cache], url: str) -> tuple[Any, str]:
    """Return file system and path of the object of an entry that one machine built."""
    one = cache("one")
    store(one.path(A), FILES)
    one.share(A)
    assert one.remote is not None
    files, path = fsspec.core.url_to_fs(one.remote.place(A))
    return files, path


def test_what_one_machine_built_another_finds(
    cache: Callable[[str], Cache], shared: tuple[Any, str], warnings: list[str]
) -> None:
    another = cache("another")
    assert another.locate([A, B]) == {A: "remote"}
    assert another.locate([A, B]) == {A: "local"}
    assert another.find([A, B]) == {A}
    assert (another.path(A) / "artifact.so").read_bytes() == FILES["artifact.so"]
    assert Cache(directory=another.directory).find([A, B]) == {A}
    assert warnings == []


def test_objects_are_named_by_fingerprint_alone_and_leave_nothing_beside_them(
    shared: tuple[Any, str], url: str
) -> None:
    files, path = shared
    root = fsspec.core.url_to_fs(url)[1]
    assert files.find(root) == [path] == [f"{root}/aa/{A}.zip"]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda content: content[:-10], "is cut off or altered"),
        (lambda content: b"nothing", "is cut off or altered"),
        (lambda content: content[:60] + b"changed" + content[67:], "is cut off or altered"),
    ],
)
def test_damaged_object_is_a_miss_with_a_warning_and_is_overwritten(
    cache: Callable[[str], Cache],
    shared: tuple[Any, str],
    warnings: list[str],
    damage: Callable[[bytes], bytes],
    problem: str,
) -> None:
    files, path = shared
    files.pipe_file(path, damage(files.cat_file(path)))
    another = cache("another")
    assert another.find([A]) == set()
    (warning,) = warnings
    assert problem in warning
    assert f"/aa/{A}.zip: " in warning
    assert not another.path(A).exists()
    store(another.path(A), FILES)
    another.share(A)
    assert cache("third").find([A]) == {A}


def test_object_of_another_fingerprint_is_a_miss(
    cache: Callable[[str], Cache], shared: tuple[Any, str], warnings: list[str]
) -> None:
    files, path = shared
    files.makedirs(files._parent(path).replace("/aa", "/bb"), exist_ok=True)
    files.pipe_file(path.replace("/aa/", "/bb/").replace(A, B), files.cat_file(path))
    assert cache("another").find([B]) == set()
    assert f"is the entry of {A}" in warnings[0]


def test_readers_see_whole_objects_while_others_write_them(
    cache: Callable[[str], Cache], shared: tuple[Any, str], warnings: list[str]
) -> None:
    one = cache("one")
    remote = one.remote
    assert remote is not None

    def write_and_read(number: int) -> bool:
        one.share(A)
        content = remote.get(A)
        return content is not None and unpack(content)["artifact.so"] == FILES["artifact.so"]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(write_and_read, range(200)))
    assert warnings == []
    assert len(remote.entries()) == 1


def test_use_of_an_old_object_makes_it_a_new_one(
    cache: Callable[[str], Cache], shared: tuple[Any, str]
) -> None:
    files, path = shared
    old = dt.datetime.now(dt.timezone.utc).timestamp() - 2 * REFRESH_S
    set_time(files, path, old)
    another = cache("another")
    assert another.remote is not None
    assert another.remote.entries()[0].used_s == pytest.approx(old, abs=2)
    assert another.find([A]) == {A}
    assert another.remote.entries()[0].used_s > old + REFRESH_S


def set_time(files: Any, path: str, seconds: float) -> None:
    if "memory" in files.protocol:
        moment = dt.datetime.fromtimestamp(seconds, dt.timezone.utc)
        files.store[path].modified = moment
    else:
        os.utime(path, (seconds, seconds))


def test_trimming_removes_what_was_not_used_for_the_longest_time(
    cache: Callable[[str], Cache], shared: tuple[Any, str]
) -> None:
    files, path = shared
    one = cache("one")
    store(one.path(B), FILES)
    one.share(B)
    assert one.remote is not None
    set_time(files, path, 1000.0)
    stored = one.remote.entries()
    assert [item.used_s == 1000.0 for item in stored] == [True, False]
    gone = one.remote.trim(stored[1].size_bytes)
    assert [item.name for item in gone] == [stored[0].name]
    assert cache("another").find([A, B]) == {B}
    assert len(one.remote.trim(0)) == 1
    assert one.remote.entries() == []


def test_other_things_in_the_place_are_neither_counted_nor_removed(
    cache: Callable[[str], Cache], shared: tuple[Any, str], url: str
) -> None:
    files, path = shared
    root = fsspec.core.url_to_fs(url)[1]
    others = [f"{root}/notes.txt", f"{root}/aa/{A}.txt", f"{root}/aa/{A}"]
    for other in others:
        files.pipe_file(other, b"precious")
    remote = cache("one").remote
    assert remote is not None
    assert [item.name for item in remote.entries()] == [path]
    assert [item.name for item in remote.trim(0)] == [path]
    assert sorted(files.find(root)) == sorted(others)


def test_place_that_fails_is_warned_of_once_and_costs_nothing_else(
    tmp_path: Path, warnings: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    remote = RemoteCache(f"file://{tmp_path}/file/below", warnings.append)
    cache = Cache(directory=tmp_path / "cache", remote=remote, warn=warnings.append)
    assert cache.find([A, B]) == set()
    store(cache.path(A), FILES)
    cache.share(A)
    cache.share(A)
    assert cache.find([A, B]) == {A}
    (warning,) = warnings
    assert warning.startswith(f"cache: file://{tmp_path}/file/below: cannot be ")
    assert warning.endswith("; going on without it")


def test_place_that_may_only_be_read_is_read_on(
    cache: Callable[[str], Cache],
    shared: tuple[Any, str],
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("may not write")

    files, path = shared
    set_time(files, path, 1000.0)  # so that it would be written again
    monkeypatch.setattr(type(files), "pipe_file", refuse)
    another = cache("another")
    store(another.path(B), FILES)
    another.share(B)
    another.share(B)
    assert another.find([A]) == {A}
    (warning,) = warnings
    assert "cannot be written: PermissionError: may not write; going on without it" in warning


def test_password_in_a_url_is_not_shown(warnings: list[str]) -> None:
    remote = RemoteCache("http://me:secret@127.0.0.1:1/cache", warnings.append)
    assert remote.get(A) is None
    (warning,) = warnings
    assert warning.startswith("cache: http://127.0.0.1:1/cache: cannot be read: ")
    assert "secret" not in warning + remote.place(A)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense://x", "nonsense://x: is not a URL that fsspec opens: Protocol not known"),
        ("file:///", "file:///: is a whole file system, must name a directory or bucket in it"),
        ("memory://", "memory://: is a whole file system, must name a directory or bucket in it"),
    ],
)
def test_url_that_cannot_be_ends_with_2(url: str, message: str) -> None:
    with pytest.raises(OptionError) as raised:
        RemoteCache(url)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(("missing", "url"), [("fsspec", "file:///tmp/x"), ("s3fs", "s3://b/x")])
def test_missing_package_ends_with_4_and_a_hint(missing: str, url: str) -> None:
    script = f"""
import sys
sys.modules[{missing!r}] = None
from tilewheel_build.cli import main
sys.exit(main(["cache", "info", "--place", {url!r}]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 4, done.stderr
    problem, hint = done.stderr.splitlines()
    assert problem.startswith(f"{url}: ")
    assert missing in problem
    assert hint == "hint: python -m pip install -r requirements-dev.txt"
