"""Building a grid on several machines: each builds a share, ``merge`` puts the shares together.

A share holds, beside its artifacts, the plan of the whole: every key and the fingerprint that its
artifact must have. So ``merge`` needs neither compilers nor specs to see that shares are of one
build, complete, and disjoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewheel.errors import ManifestError
from tilewheel.manifest import FILE_NAME, Artifact, Library, Manifest, read
from tilewheel_build.backends import BACKENDS
from tilewheel_build.cache import Cache
from tilewheel_build.driver import (
    BuildResult,
    Layout,
    Observer,
    Runner,
    build_units,
    collect,
    plan_units,
)
from tilewheel_build.errors import ArtifactError
from tilewheel_build.host_compiler import MACHINES
from tilewheel_build.process import TIMEOUT_S
from tilewheel_build.publish import publish
from tilewheel_build.variant import SelectionError, Variant

RECORD = "shard.json"
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The ``index``-th of ``count`` shares, counted from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return what ``2/3`` means; raises ValueError where it means nothing."""
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
            raise ValueError(f"is {text!r}, must be I/N with I from 1 to N")
        return cls(index=int(index), count=int(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """What one directory of a shard holds."""

    directory: Path
    shard: Shard
    machine: str
    plan: dict[str, str]
    manifest: Manifest

    @property
    def build(self) -> tuple[str, str]:
        """Processor and backend: what the shards of one build have in common."""
        return self.machine, self.manifest.backend

    @property
    def files(self) -> tuple[Artifact | Library, ...]:
        """Every file that the manifest lists."""
        return (*self.manifest.artifacts, *self.manifest.libraries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What was published of one build, and the directories of the shards that it was in."""

    directory: Path
    machine: str
    manifest: Manifest
    shards: tuple[tuple[Shard, Path], ...]


def deal(variants: Iterable[Variant], shard: Shard) -> tuple[Variant, ...]:
    """Return the variants of a share, sorted by key.

    Shares differ by at most one variant, over all and of each operator. Within an operator
    neighbours are told apart by a hash, so that no parameter's rhythm fills one share with its
    slowest values.
    """

    def place(variant: Variant) -> tuple[str, bytes]:
        digest = hashlib.sha256(str(variant.key).encode()).digest()
        return variant.key.operator, digest

    dealt = sorted(variants, key=place)[shard.index - 1 :: shard.count]
    return tuple(sorted(dealt, key=lambda variant: variant.key.sort_key()))


def shard_directory(layout: Layout, machine: str, backend: str, shard: Shard) -> Path:
    """Return where ``build_shard`` publishes."""
    return layout.out / "shards" / machine / f"{shard.index}-of-{shard.count}" / backend


def build_shard(
    variants: Sequence[Variant],
    shard: Shard,
    *,
    layout: Layout,
    backend: str,
    machine: str,
    cache: Cache,
    run: Runner,
    timeout_s: float = TIMEOUT_S,
    observe: Observer = lambda key, event: None,
) -> BuildResult:
    """Build one share of the variants of a backend; publish it where none of it failed.

    Raises:
        ToolchainError: a tool is missing; nothing was started.
        ClusterError: what ``run`` runs on went away; nothing of this backend was published.
    """
    units = plan_units(
        variants, layout=layout, backend=backend, machine=machine, cache=cache, timeout_s=timeout_s
    )
    own = {variant.key for variant in deal(variants, shard)}
    share = [unit for unit in units if unit.variant.key in own]
    result = build_units(share, cache, run, observe)
    if result.failures:
        return result
    record = {
        "shard": str(shard),
        "machine": machine,
        "plan": {str(unit.variant.key): unit.fingerprint for unit in units},
    }
    manifest, files = collect(
        result.built, layout=layout, backend=backend, machine=machine, cache=cache
    )
    text = json.dumps(record, sort_keys=True, indent=1) + "\n"
    publish(shard_directory(layout, machine, backend, shard), manifest, files, {RECORD: text})
    return result


def merge(directories: Sequence[Path], layout: Layout) -> list[Merged]:
    """Publish the shards found below the directories.

    Raises:
        SelectionError: there are none.
        ArtifactError: shards are missing, overlap, or are not of one build; nothing is published.
    """
    records = sorted({path for root in directories for path in root.rglob(RECORD)})
    if not records:
        places = ", ".join(map(str, directories))
        raise SelectionError(
            f"{places}: holds no {RECORD}, must hold what `build --shard` wrote below out/shards"
        )
    shares = [_read(record) for record in records]
    merged = []
    for machine, backend in sorted({share.build for share in shares}):
        own = [share for share in shares if share.build == (machine, backend)]
        own.sort(key=lambda share: share.shard.index)
        problems = _differences(own) or _places(own) or _contents(own)
        if problems:
            where = f"{backend} for {machine}"
            raise ArtifactError("\n".join(f"{where}: {problem}" for problem in problems))
        artifacts = tuple(artifact for share in own for artifact in share.manifest.artifacts)
        whole = Merged(
            directory=layout.artifacts(machine) / backend,
            machine=machine,
            manifest=replace(own[0].manifest, artifacts=artifacts),
            shards=tuple((share.shard, share.directory) for share in own),
        )
        merged.append((whole, _files(own)))
    for whole, files in merged:
        publish(whole.directory, whole.manifest, files)
    return [whole for whole, _ in merged]


def _read(record: Path) -> _Share:
    directory = record.parent
    try:
        tree: Any = json.loads(record.read_text())
        shard = Shard.parse(str(tree["shard"]))
        machine, plan = tree["machine"], tree["plan"]
        # The name of the directory to publish comes from it.
        if machine not in MACHINES:
            raise ValueError(f"machine: is {machine!r}, must be one of {', '.join(MACHINES)}")
        if not isinstance(plan, dict) or not all(isinstance(v, str) for v in plan.values()):
            raise ValueError("plan: is no mapping of keys to fingerprints, must be one")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"{record}: is not as `build --shard` writes it: {error}") from error
    try:
        manifest = read(directory / FILE_NAME)
    except ManifestError as error:
        raise ArtifactError(str(error)) from error
    if manifest.backend not in BACKENDS:
        raise ArtifactError(
            f"{directory / FILE_NAME}: backend: is {manifest.backend!r}, must be one of "
            f"{', '.join(BACKENDS)}"
        )
    return _Share(directory=directory, shard=shard, machine=machine, plan=plan, manifest=manifest)


def _differences(shares: Sequence[_Share]) -> list[str]:
    """Return in what the shares are not of one build: sources, tools, selection, release."""
    first = shares[0]
    problems = []
    for share in shares[1:]:
        where = f"{share.directory} and {first.directory}"
        keys = sorted({*share.plan, *first.plan})
        wrong = [key for key in keys if share.plan.get(key) != first.plan.get(key)]
        if wrong:
            problems.append(
                f"{where}: differ in the fingerprints of {len(wrong)} of {len(keys)} variants, "
                f"must be built from the same sources, tools and options: {_shown(wrong)}"
            )
            continue
        plain = [replace(item.manifest, artifacts=()) for item in (share, first)]
        if plain[0] != plain[1]:
            problems.append(f"{where}: differ in version, commit or libraries, must be alike")
    return problems


def _places(shares: Sequence[_Share]) -> list[str]:
    """Return which of the N shards are there twice or not at all."""
    counts = sorted({share.shard.count for share in shares})
    if len(counts) > 1:
        named = ", ".join(str(share.shard) for share in shares)
        return [f"has shards {named}, must have one number of shards"]
    problems = []
    for index in range(1, counts[0] + 1):
        found = [str(share.directory) for share in shares if share.shard.index == index]
        name = f"shard {index}/{counts[0]}"
        if not found:
            problems.append(f"{name}: is missing, must be there")
        elif len(found) > 1:
            problems.append(f"{name}: is in {' and '.join(found)}, must be in one place")
    return problems


def _contents(shares: Sequence[_Share]) -> list[str]:
    """Return which artifacts are missing, twice there, foreign, or not as their manifest says."""
    problems = []
    seen: dict[str, Path] = {}
    plan = shares[0].plan
    for share in shares:
        for artifact in share.manifest.artifacts:
            key = str(artifact.key)
            if key in seen:
                problems.append(f"{key}: is in {seen[key]} and {share.directory}, must be in one")
            if plan.get(key) != artifact.fingerprint:
                problems.append(
                    f"{share.directory}: {key}: fingerprint is {artifact.fingerprint}, must be "
                    f"{plan.get(key, 'absent: it is not planned')}"
                )
            seen[key] = share.directory
        for file in share.files:
            problems += _file_problems(share.directory, file)
    gaps = sorted(set(plan) - set(seen))
    if gaps:
        problems.append(
            f"{len(gaps)} of {len(plan)} artifacts are in no shard, must be in one: {_shown(gaps)}"
        )
    return problems


def _file_problems(directory: Path, file: Artifact | Library) -> list[str]:
    path = directory / file.path
    try:
        inside = path.resolve(strict=True).is_relative_to(directory.resolve())
        content = path.read_bytes() if inside else b""
    except OSError as error:
        return [f"{path}: cannot be read: {error.strerror or error}"]
    if hashlib.sha256(content).hexdigest() != file.sha256:
        return [f"{path}: sha256 differs from the manifest's"]
    return []


def _files(shares: Sequence[_Share]) -> dict[str, Path]:
    """Return the files to publish: all that the manifests list, and the device sources."""
    files = {}
    for share in shares:
        suffix = BACKENDS[share.manifest.backend].source_suffix
        for file in share.files:
            files[file.path] = share.directory / file.path
            source = file.path.removesuffix(".so") + suffix
            if (share.directory / source).is_file():
                files[source] = share.directory / source
    return files


def _shown(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more
