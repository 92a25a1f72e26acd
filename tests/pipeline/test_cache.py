"""Builds with a cache that others share: a directory, a URL, an S3 server on this machine."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

STAGE = "stage-hidden=16384-cuda-sm_90a"
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]


@pytest.fixture
def elsewhere(built: Any, tmp_path: Path) -> Callable[[str], Any]:
    """Return the function that makes a copy of the sources in another directory, with no cache."""

    def make(name: str) -> Any:
        place = tmp_path / name / ("deep/" * len(name))
        shutil.copytree(built.root, place / "tree")
        # What zig compiled of the C library serves every copy.
        (place / "out" / "cache").mkdir(parents=True)
        (place / "out" / "cache" / "zig").symlink_to(built.out / "cache" / "zig")
        return type(built)(root=place / "tree", out=place / "out")

    return make


@pytest.fixture
def filled(built: Any, tmp_path: Path) -> str:
    """Return a URL to which a build from the cache of another place was copied."""
    from tilewheel_build.cache import Cache, entries
    from tilewheel_build.remote_cache import RemoteCache

    url = f"file://{tmp_path}/remote"
    cache = Cache(directory=built.out / "cache", remote=RemoteCache(url))
    for entry in entries(cache.directory):
        cache.share(entry.name)
    return url


def entry_of(checkout: Any) -> Path:
    found = (
        path.parent
        for path in checkout.out.glob("cache/*/launcher.c")
        if path.read_text().startswith(f"/* Launcher of {STAGE},")
    )
    return next(found)


def summary(done: Any) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    last: str = done.stdout.splitlines()[-1]
    return last


def warnings(done: Any) -> list[str]:
    """Return what a build says beside its progress."""
    lines = done.stderr.splitlines()
    return [line for line in lines if not line.startswith(("cuda: ", "built "))]


ALL_CACHED = "3 artifacts (3 from the cache), 0 failed"


def test_same_tree_in_another_directory_hits_a_shared_directory(
    built: Any, elsewhere: Callable[[str], Any], tmp_path: Path
) -> None:
    shutil.copytree(built.out / "cache", tmp_path / "shared", ignore=lambda *_: ["zig"])
    other = elsewhere("other")
    done = other.run("build", "--cache", str(tmp_path / "shared"), PATH="")
    assert summary(done) == ALL_CACHED
    assert other.published() == built.published()
    assert [path.name for path in (other.out / "cache").iterdir()] == ["zig"]


def test_same_tree_in_another_directory_hits_a_url_and_keeps_what_it_fetched(
    built: Any, elsewhere: Callable[[str], Any], filled: str
) -> None:
    other = elsewhere("other")
    assert summary(other.run("build", "--remote-cache", filled, PATH="")) == ALL_CACHED
    assert other.published() == built.published()
    assert summary(other.run("build", PATH="")) == ALL_CACHED


def test_shards_take_from_a_url_and_merge_to_the_whole(
    built: Any, elsewhere: Callable[[str], Any], filled: str
) -> None:
    other = elsewhere("other")
    for index in (1, 2):
        chosen = ("--shard", f"{index}/2", "--remote-cache", filled)
        done = other.run("build", *chosen, PATH="")
        assert done.returncode == 0, done.stderr
        assert "(0 from the cache)" not in done.stdout
    assert other.run("merge", str(other.out / "shards")).returncode == 0
    assert other.published() == built.published()


def test_changed_source_misses_and_both_states_stay(
    elsewhere: Callable[[str], Any], filled: str
) -> None:
    other = elsewhere("other")
    kernel = other.kernel("stage_cuda.py")
    before = kernel.read_text()
    kernel.write_text(before + "\n# changed\n")
    chosen = ("build", "--remote-cache", filled, "--only", "stage*")
    assert summary(other.run(*chosen)) == "1 artifacts (0 from the cache), 0 failed"
    kernel.write_text(before)
    assert summary(other.run(*chosen, PATH="")) == "1 artifacts (1 from the cache), 0 failed"
    third = elsewhere("third")
    third.kernel("stage_cuda.py").write_text(before + "\n# changed\n")
    assert summary(third.run(*chosen, PATH="")) == "1 artifacts (1 from the cache), 0 failed"


def test_damaged_entry_is_warned_of_and_built_again_to_the_same_bytes(copy: Any) -> None:
    before = copy.published()
    entry = entry_of(copy)
    (entry / "kernel.cu").write_text("altered")
    done = copy.run("build")
    assert summary(done) == "3 artifacts (2 from the cache), 0 failed"
    assert warnings(done) == [
        f"warning: cache: {entry}: kernel.cu is not what was stored; it is not used"
    ]
    assert copy.published() == before
    done = copy.run("build", PATH="")
    assert (summary(done), done.stderr) == (ALL_CACHED, "")


def test_device_code_for_another_processor_comes_from_a_url(
    elsewhere: Callable[[str], Any], filled: str
) -> None:
    chosen = ("build", "--machine", OTHER, "--only", STAGE, "--remote-cache", filled)
    artifact = f"artifacts-{OTHER}/cuda/sm_90a/{STAGE}.so"
    other = elsewhere("other")
    # Without g++ on PATH nvcc cannot run: only the launcher is compiled.
    assert summary(other.run(*chosen, PATH="")) == "1 artifacts (0 from the cache), 0 failed"
    assert not other.artifacts.exists()
    third = elsewhere("third")
    assert summary(third.run(*chosen, PATH="")) == "1 artifacts (1 from the cache), 0 failed"
    assert (third.out / artifact).read_bytes() == (other.out / artifact).read_bytes()


@pytest.mark.parametrize("name", ["artifact.so", "launcher.c"])
def test_damaged_entry_serves_no_other_processor(copy: Any, name: str) -> None:
    entry = entry_of(copy)
    (entry / name).write_bytes((entry / name).read_bytes() + b" ")
    done = copy.run("build", "--machine", OTHER, "--only", STAGE, PATH="")
    assert done.returncode == 4, done.stderr
    warning = f"warning: cache: {entry}: {name} is not what was stored; it is not used"
    assert done.stderr.splitlines()[0] == warning
    assert not (copy.out / f"artifacts-{OTHER}").exists()


def test_url_that_cannot_be_reached_is_warned_of_and_the_build_goes_on(copy: Any) -> None:
    assert copy.run("cache", "clear").returncode == 0
    url = f"file://{copy.root}/specs/probe/stage.yaml/cache"
    done = copy.run("build", "--only", "stage*", "--remote-cache", url)
    assert summary(done) == "1 artifacts (0 from the cache), 0 failed"
    (warning,) = warnings(done)
    assert warning.startswith(f"warning: cache: {url}: cannot be ")


def test_build_bounds_its_cache_and_the_next_builds_what_went(copy: Any) -> None:
    done = copy.run("build", "--only", "stage*", "--cache-limit", "0")
    assert summary(done) == "1 artifacts (1 from the cache), 0 failed"
    assert [path.name for path in (copy.out / "cache").iterdir()] == ["zig"]
    assert copy.run("verify").returncode == 0


def test_cache_command_tells_and_clears(copy: Any, filled: str) -> None:
    directory = copy.out / "cache"
    told = copy.run("cache", "info")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout == f"{directory}: 3 entries, 0.1 MiB\n"
    assert copy.run("cache", "info", "--place", filled).stdout.startswith(f"{filled}: 3 entries, ")
    assert copy.run("cache", "trim", "--limit", "1G").stdout == (
        f"{directory}: 0 entries removed, 0.0 MiB\n"
    )
    assert copy.run("cache", "trim", "--limit", "100K", "--place", filled).stdout.startswith(
        f"{filled}: 0 entries removed, "
    )
    assert copy.run("cache", "clear").stdout == f"{directory}: 3 entries removed, 0.1 MiB\n"
    assert copy.run("cache", "info").stdout == f"{directory}: 0 entries, 0.0 MiB\n"
    assert (directory / "zig").exists()
    assert copy.run("cache", "clear", "--place", filled).stdout.startswith(
        f"{filled}: 3 entries removed, "
    )
    assert copy.run("cache", "info", "--place", filled).stdout == f"{filled}: 0 entries, 0.0 MiB\n"


def test_cache_that_is_no_directory_ends_with_2(copy: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = copy.run("build", "--cache", str(tmp_path / "file"))
    assert (done.returncode, done.stderr) == (
        2,
        f"--cache: {tmp_path}/file cannot be written: File exists\n"
        "hint: choose another directory with --cache\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trim",), "--limit: is missing, must be given with trim\n"),
        (("clear", "--limit", "1G"), "--limit: is given, must not be with clear\n"),
    ],
)
def test_limit_goes_with_trim_alone(copy: Any, arguments: tuple[str, ...], message: str) -> None:
    done = copy.run("cache", *arguments)
    assert (done.returncode, done.stderr) == (2, message)
    assert copy.run("cache", "info").stdout.endswith(": 3 entries, 0.1 MiB\n")


@pytest.mark.parametrize("text", ["", "x", "-1", "1X", "1 2"])
def test_size_that_is_none_ends_with_2(copy: Any, text: str) -> None:
    done = copy.run("build", f"--cache-limit={text}")
    assert done.returncode == 2
    assert f"is {text!r}, must be a size such as 500M or 4GiB" in done.stderr


def test_sizes_are_powers_of_1024() -> None:
    from tilewheel_build.option_types import size

    assert [size(text) for text in ("0", "7", "7B", "1k", "1.5MiB", "2 GB", "1T")] == [
        *(0, 7, 7, 1 << 10, 3 << 19, 2 << 30, 1 << 40)
    ]


@dataclass(frozen=True)
class S3:
    """An S3 server on this machine with one bucket, and what a process needs to reach it."""

    files: Any
    variables: dict[str, str]
    url: str = "s3://artifacts/tilewheel"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    s3fs = pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    files = s3fs.S3FileSystem(
        key="test", secret="test", endpoint_url=endpoint, use_listings_cache=False
    )
    files.mkdir("artifacts")
    variables = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    yield S3(files=files, variables=variables)
    server.stop()


def test_what_one_machine_builds_another_takes_from_s3(
    s3: S3, elsewhere: Callable[[str], Any]
) -> None:
    chosen = ("build", "--only", "stage*", "--remote-cache", s3.url)
    one, two = elsewhere("one"), elsewhere("two")
    done = one.run(*chosen, **s3.variables)
    assert summary(done) == "1 artifacts (0 from the cache), 0 failed"
    (path,) = s3.files.find("artifacts/tilewheel")
    done = two.run(*chosen, **s3.variables, PATH="")
    assert (summary(done), done.stderr) == ("1 artifacts (1 from the cache), 0 failed", "")
    assert two.published() == one.published()

    content = s3.files.cat_file(path)
    s3.files.pipe_file(path, content[:-100])
    three = elsewhere("three")
    done = three.run(*chosen, **s3.variables)
    assert summary(done) == "1 artifacts (0 from the cache), 0 failed"
    assert f"warning: cache: s3://{path}: is cut off or altered: " in done.stderr
    assert three.published() == one.published()
    assert len(s3.files.cat_file(path)) > len(content) - 100

    told = one.run("cache", "info", "--place", s3.url, **s3.variables)
    assert told.stdout.startswith(f"{s3.url}: 1 entries, ")
    cleared = one.run("cache", "clear", "--place", s3.url, **s3.variables)
    assert cleared.stdout.startswith(f"{s3.url}: 1 entries removed, ")
    assert s3.files.find("artifacts/tilewheel") == []


def test_bucket_that_is_not_there_is_not_made(s3: S3, copy: Any) -> None:
    shutil.rmtree(
        next(p.parent for p in copy.out.glob("cache/*/launcher.c") if STAGE in p.read_text())
    )
    chosen = ("build", "--only", "stage*", "--remote-cache", "s3://mistyped/x")
    done = copy.run(*chosen, **s3.variables)
    assert summary(done) == "1 artifacts (0 from the cache), 0 failed"
    assert warnings(done) == [
        "warning: cache: s3://mistyped/x: cannot be written: it has no such bucket or directory; "
        "going on without it"
    ]
    assert s3.files.ls("") == ["artifacts"]
