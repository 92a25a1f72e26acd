"""A build in shards: what they publish, and what ``merge`` makes of them or refuses."""

from __future__ import annotations

import json
import platform
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

PLAIN = "scale-hidden=128-with_bias=false-cuda-sm_90a"
BIASED = "scale-hidden=any-with_bias=true-cuda-sm_90a"
STAGE = "stage-hidden=16384-cuda-sm_90a"
HERE = platform.machine()
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[HERE]


def shards_of(checkout: Any) -> Path:
    """Return where a checkout's shards for this processor are."""
    directory: Path = checkout.out / "shards" / HERE
    return directory


def build_shards(checkout: Any, count: int) -> list[Path]:
    """Build every shard of a checkout; return their directories."""
    for index in range(1, count + 1):
        done = checkout.run("build", "--shard", f"{index}/{count}")
        assert done.returncode == 0, done.stderr
    return [shards_of(checkout) / f"{i}-of-{count}" / "cuda" for i in range(1, count + 1)]


def copy_of(checkout: Any, place: Path) -> Any:
    """Return a copy of a checkout and all that it built; zig's cache stays one."""
    shutil.copytree(checkout.root, place / "tree")
    shutil.copytree(checkout.out, place / "out", ignore=shutil.ignore_patterns("zig"))
    (place / "out" / "cache" / "zig").symlink_to(checkout.out / "cache" / "zig")
    return replace(checkout, root=place / "tree", out=place / "out")


@pytest.fixture(scope="module")
def sharded(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a checkout with two shards that are built and not merged; tests leave it as it is."""
    checkout = copy_of(built, tmp_path_factory.mktemp("sharded"))
    build_shards(checkout, 2)
    return checkout


@pytest.fixture
def shards(sharded: Any, tmp_path: Path) -> Any:
    """Return a copy of the checkout with two shards that the test may change."""
    return copy_of(sharded, tmp_path)


def keys(directory: Path) -> list[str]:
    tree = json.loads((directory / "manifest.json").read_text())
    return [artifact["key"] for artifact in tree["artifacts"]]


def change(path: Path, **fields: object) -> None:
    tree = json.loads(path.read_text())
    path.write_text(json.dumps({**tree, **fields}))


def refusal(checkout: Any) -> list[str]:
    """Return what ``merge`` says of the checkout's shards, which it must not publish."""
    before = checkout.published()
    done = checkout.run("merge", str(checkout.out / "shards"))
    assert (done.returncode, done.stdout) == (7, "")
    assert checkout.published() == before
    text: str = done.stderr.replace(f"{shards_of(checkout)}/", "").replace(f" for {HERE}: ", ": ")
    return text.splitlines()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_merged_shards_are_the_build_in_one_piece(copy: Any, count: int) -> None:
    whole = copy.published()
    shutil.rmtree(copy.artifacts)
    directories = build_shards(copy, count)
    assert not copy.artifacts.exists()
    assert sorted(key for path in directories for key in keys(path)) == [PLAIN, BIASED, STAGE]
    done = copy.run("merge", str(copy.out / "shards"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"3 artifacts in {copy.artifacts}",
        f"report: {copy.out}/report.html",
    ]
    assert copy.published() == whole


def test_shard_publishes_its_share_and_the_plan_of_the_whole(shards: Any) -> None:
    directory = shards_of(shards) / "1-of-2" / "cuda"
    assert keys(directory) == [BIASED, STAGE]
    record = json.loads((directory / "shard.json").read_text())
    assert record["shard"] == "1/2"
    assert sorted(record["plan"]) == [PLAIN, BIASED, STAGE]


def test_list_prints_the_keys_of_a_shard(shards: Any) -> None:
    for index in (1, 2):
        listed = shards.run("list", "--shard", f"{index}/2").stdout.splitlines()
        assert listed == keys(shards_of(shards) / f"{index}-of-2" / "cuda")


def test_missing_shard_is_a_gap(shards: Any) -> None:
    shutil.rmtree(shards_of(shards) / "2-of-2")
    assert refusal(shards) == ["cuda: shard 2/2: is missing, must be there"]


def test_shard_twice_is_an_overlap(shards: Any) -> None:
    shutil.copytree(shards_of(shards) / "1-of-2", shards_of(shards) / "again")
    assert refusal(shards) == [
        "cuda: shard 1/2: is in 1-of-2/cuda and again/cuda, must be in one place"
    ]


def test_key_in_two_shards_is_an_overlap_and_one_in_none_a_gap(shards: Any) -> None:
    first, second = (shards_of(shards) / f"{i}-of-2" / "cuda" for i in (1, 2))
    lost = keys(second)[0]
    shutil.copytree(first, second, dirs_exist_ok=True)
    change(second / "shard.json", shard="2/2")
    assert refusal(shards) == [
        *(f"cuda: {key}: is in 1-of-2/cuda and 2-of-2/cuda, must be in one" for key in keys(first)),
        f"cuda: 1 of 3 artifacts are in no shard, must be in one: {lost}",
    ]


def test_shards_of_other_sources_are_refused(shards: Any) -> None:
    module = shards.kernel("stage_cuda.py")
    module.write_text(module.read_text() + "\n# changed\n")
    assert shards.run("build", "--shard", "2/2").returncode == 0
    assert refusal(shards) == [
        "cuda: 2-of-2/cuda and 1-of-2/cuda: differ in the fingerprints of 1 of 3 variants, must be "
        f"built from the same sources, tools and options: {STAGE}"
    ]


def test_shards_of_another_selection_or_count_are_refused(shards: Any) -> None:
    assert shards.run("build", "--shard", "2/2", "--only", "scale*").returncode == 0
    assert "differ in the fingerprints of 1 of 3 variants" in refusal(shards)[0]
    shutil.rmtree(shards_of(shards) / "2-of-2")
    assert shards.run("build", "--shard", "2/3").returncode == 0
    assert refusal(shards) == ["cuda: has shards 1/2, 2/3, must have one number of shards"]


def test_shards_of_two_processors_lie_side_by_side_and_are_merged_each(copy: Any) -> None:
    whole = copy.published()
    shutil.rmtree(copy.artifacts)
    build_shards(copy, 1)
    assert copy.run("build", "--shard", "1/2", "--machine", OTHER).returncode == 0
    # The other processor's are no part of this one's build, nor make up for what it lacks.
    done = copy.run("merge", str(copy.out / "shards"))
    assert done.returncode == 7
    assert done.stderr == f"cuda for {OTHER}: shard 2/2: is missing, must be there\n"
    assert not copy.artifacts.exists()
    assert copy.run("build", "--shard", "2/2", "--machine", OTHER).returncode == 0
    done = copy.run("merge", str(copy.out / "shards"))
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.splitlines()) == {
        f"3 artifacts in {copy.artifacts}",
        f"3 artifacts in {copy.out / f'artifacts-{OTHER}' / 'cuda'}",
        f"report: {copy.out}/report.html",
    }
    assert copy.published() == whole
    assert len(keys(copy.out / f"artifacts-{OTHER}" / "cuda")) == 3


def test_shards_of_other_commits_are_refused(shards: Any) -> None:
    change(shards_of(shards) / "2-of-2" / "cuda" / "manifest.json", source_commit="abc")
    assert refusal(shards) == [
        "cuda: 2-of-2/cuda and 1-of-2/cuda: differ in version, commit or libraries, must be alike"
    ]


def test_artifact_that_is_not_the_planned_one_is_refused(shards: Any) -> None:
    path = shards_of(shards) / "1-of-2" / "cuda" / "manifest.json"
    tree = json.loads(path.read_text())
    planned = tree["artifacts"][0]["fingerprint"]
    tree["artifacts"][0]["fingerprint"] = "f"
    path.write_text(json.dumps(tree))
    key = tree["artifacts"][0]["key"]
    assert refusal(shards) == [f"cuda: 1-of-2/cuda: {key}: fingerprint is f, must be {planned}"]


@pytest.mark.parametrize("how", ["changed", "absent", "elsewhere"])
def test_file_that_is_not_as_listed_is_refused(shards: Any, how: str) -> None:
    directory = shards_of(shards) / "1-of-2" / "cuda"
    path = directory / "sm_90a" / f"{keys(directory)[0]}.so"
    outside = shards.out / "outside.so"
    path.rename(outside)
    if how == "changed":
        path.write_bytes(outside.read_bytes() + b"x")
    elif how == "elsewhere":
        path.symlink_to(outside)
    name = path.relative_to(shards_of(shards))
    absent = "cannot be read: No such file or directory"
    problem = absent if how == "absent" else "sha256 differs from the manifest's"
    assert refusal(shards) == [f"cuda: {name}: {problem}"]


@pytest.mark.parametrize("text", ["{", "[]", '{"shard": "3/2"}', "[" * 100_000])
def test_unreadable_record_is_refused(shards: Any, text: str) -> None:
    (shards_of(shards) / "1-of-2" / "cuda" / "shard.json").write_text(text)
    assert refusal(shards)[0].startswith(
        "1-of-2/cuda/shard.json: is not as `build --shard` writes it: "
    )


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("shard", 5, "is '5', must be I/N with I from 1 to N"),
        ("machine", "x/../../../escaped", "machine: is 'x/../../../escaped', must be one of "),
        ("machine", "x86_64\0", r"machine: is 'x86_64\x00', must be one of x86_64, aarch64"),
        ("machine", ["a"], "machine: is ['a'], must be one of x86_64, aarch64"),
        ("plan", 5, "plan: is no mapping of keys to fingerprints, must be one"),
        ("plan", {"a": ["b"]}, "plan: is no mapping of keys to fingerprints, must be one"),
    ],
)
def test_record_with_a_wrong_value_is_refused(
    shards: Any, field: str, value: object, problem: str
) -> None:
    change(shards_of(shards) / "1-of-2" / "cuda" / "shard.json", **{field: value})
    assert refusal(shards)[0].startswith(
        f"1-of-2/cuda/shard.json: is not as `build --shard` writes it: {problem}"
    )


def test_shard_without_manifest_is_refused(shards: Any) -> None:
    (shards_of(shards) / "1-of-2" / "cuda" / "manifest.json").unlink()
    assert (
        refusal(shards)[0] == "1-of-2/cuda/manifest.json: cannot be read: No such file or directory"
    )


def test_merge_of_no_shards_ends_with_3(built: Any, tmp_path: Path) -> None:
    done = built.run("merge", str(tmp_path))
    assert (done.returncode, done.stderr) == (
        3,
        f"{tmp_path}: holds no shard.json, must hold what `build --shard` wrote below out/shards\n",
    )


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/", "/2", "a/b", "-1/2", "1/2/3", "1/0"])
def test_shard_that_cannot_be_ends_with_2(built: Any, text: str) -> None:
    done = built.run("build", f"--shard={text}")
    assert done.returncode == 2
    assert f"argument --shard: is '{text}', must be I/N with I from 1 to N" in done.stderr


def test_shard_of_sources_ends_with_2(copy: Any) -> None:
    done = copy.run("build", "--shard", "1/2", "--source-only")
    assert (done.returncode, done.stderr) == (
        2,
        "--shard: is given, must not be with --source-only\n",
    )


def test_shard_with_a_failure_publishes_nothing(copy: Any) -> None:
    module = copy.kernel("stage_cuda.py")
    module.write_text("def broken(:\n")
    codes = {copy.run("build", "--shard", f"{i}/2").returncode for i in (1, 2)}
    assert codes == {0, 5}
    assert len(list((copy.out / "shards").rglob("shard.json"))) == 1
