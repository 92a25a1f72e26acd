"""``python -m tilewheel_build``: list, grid, lower, build, merge, finish, report, verify, cache."""

from __future__ import annotations

import argparse
import errno
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console

from tilewheel_build import build_cli, cache_cli, model_grid, option_types, report_cli
from tilewheel_build.backends import BACKENDS
from tilewheel_build.cache import DEFAULT_LIMIT_BYTES, shared
from tilewheel_build.checkout import ROOT
from tilewheel_build.driver import (
    DISK_FULL,
    Failure,
    Layout,
    local_cache,
)
from tilewheel_build.errors import (
    ArtifactError,
    ClusterError,
    CompilationError,
    LoweringError,
    OptionError,
    ToolchainError,
)
from tilewheel_build.host_compiler import MACHINES
from tilewheel_build.process import TIMEOUT_S
from tilewheel_build.profile_file import is_profile_file, load_profile
from tilewheel_build.progress import watch
from tilewheel_build.publish import lock
from tilewheel_build.shard import Shard, deal
from tilewheel_build.source_only import finish, pack, sources_directory
from tilewheel_build.spec import OperatorSpec, SpecError, check_kernel_files, load_specs
from tilewheel_build.spec_fields import KNOWN_ARCHS
from tilewheel_build.unit import lower_variant
from tilewheel_build.variant import SelectionError, Variant, expand, select
from tilewheel_build.verify import verify_directory

EXIT_OK, EXIT_OPTION, EXIT_NOTHING, EXIT_CHECK = 0, OptionError.exit_code, 3, 7

DEFAULT_TARGET = "cuda,ascend-sim"
"""What any machine can build: the backend `ascend` needs CANN."""


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; messages go to standard error."""
    options = _parser().parse_args(arguments)
    errors = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    layout = Layout(root=options.root.resolve(), out=_out_directory(options))
    try:
        if options.command == "verify":
            return _verify(layout.artifacts(options.machine), options.target, errors)
        if options.command == "report":
            report_cli.run(options, layout.out)
            return EXIT_OK
        if options.command == "cache":
            cache_cli.run(options, layout.out, errors.print)
            return EXIT_OK
        if options.command == "finish":
            directory = local_cache(layout).directory
            with _exclusive(layout.out, errors), shared(directory, DEFAULT_LIMIT_BYTES):
                return _finish(layout, options, errors)
        if options.command == "merge":
            with _exclusive(layout.out, errors):
                return build_cli.run_merge(layout, options, errors)
        specs = load_specs(layout.root)
        check_kernel_files(specs, root=layout.root)
        if options.command == "grid":
            backends = _backends(options.target)
            model_grid.run(options, specs, out=layout.out, backends=backends, errors=errors)
            return EXIT_OK
        chosen = _variants(specs, options)
        if not chosen:
            errors.print("nothing selected: no variant fits target, archs, profile and globs")
            return EXIT_NOTHING
        for name in _without_archs(options):
            errors.print(f"{name}: left out, as --archs names none of its architectures")
        if options.command == "list":
            return _list(chosen, options.shard)
        with _exclusive(layout.out, errors):
            if options.command == "lower":
                return _lower(chosen, layout)
            if options.source_only:
                for name in ("shard", "dask", "remote_cache", "json"):
                    if getattr(options, name) not in (None, False):
                        option = name.replace("_", "-")
                        raise OptionError(f"--{option}: is given, must not be with --source-only")
                return _pack(chosen, layout, options, errors)
            return build_cli.run(chosen, layout, options, errors)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        errors.print(f"{error.filename or layout.out}: cannot be written: {error.strerror}")
        return EXIT_OPTION
    except (
        SpecError,
        SelectionError,
        OptionError,
        ToolchainError,
        LoweringError,
        CompilationError,
        ArtifactError,
        ClusterError,
    ) as error:
        errors.print(str(error))
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tilewheel_build", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("list", "print the keys; needs no compiler"),
        ("grid", "print the keys that a model needs, and write them as a profile"),
        ("lower", "write the device source of each variant below out/lowered"),
        ("build", "build artifacts and their manifest below out/artifacts"),
        ("merge", "publish what `build --shard` wrote, once all shards are there"),
        ("finish", "compile what `build --source-only` wrote, e.g. where CANN is installed"),
        ("report", "write the page of a build's report again"),
        ("verify", "check built artifacts: hashes, symbols, architectures"),
        ("cache", "say what a cache of built artifacts holds, or remove entries from it"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--root", type=Path, default=ROOT, help="the checkout")
        command.add_argument("--out", type=Path, help="where to write (default: <root>/out)")
        if name in ("build", "finish", "verify"):
            command.add_argument("--machine", default=platform.machine(), choices=MACHINES)
        if name in ("build", "finish"):
            command.add_argument("--jobs", type=option_types.jobs, default=os.cpu_count() or 1)
            command.add_argument(
                "--compile-timeout",
                type=option_types.seconds,
                default=TIMEOUT_S,
                metavar="SECONDS",
                help="how long one run of the device compiler may take (default: %(default)g)",
            )
        if name == "cache":
            cache_cli.add_command_options(command)
            continue
        if name == "report":
            report_cli.add_arguments(command)
            continue
        if name in ("build", "merge"):
            report_cli.add_build_options(command)
        if name == "finish":
            command.add_argument("directory", type=Path, help="e.g. out/sources/ascend")
            continue
        if name == "merge":
            command.add_argument("directories", nargs="+", type=Path, help="e.g. out/shards")
            continue
        command.add_argument(
            "--target",
            default=DEFAULT_TARGET,
            help=f"{', '.join(BACKENDS)} or all; commas separate (default: {DEFAULT_TARGET})",
        )
        if name == "verify":
            continue
        command.add_argument("--archs", default="", help="architectures; commas separate")
        if name == "grid":
            model_grid.add_arguments(command)
            continue
        command.add_argument(
            "--profile", help="dev, smoke, release, a model's profile, or the path of a .yaml file"
        )
        command.add_argument("--only", action="append", default=[], help="glob over keys")
        if name in ("list", "build"):
            command.add_argument(
                "--shard",
                type=option_types.shard,
                metavar="I/N",
                help="only the I-th of N shares, into out/shards, to `merge` later",
            )
        if name == "build":
            command.add_argument(
                "--source-only",
                action="store_true",
                help="lower only, into out/sources/<target>, to `finish` elsewhere",
            )
            command.add_argument(
                "--memory",
                type=option_types.size,
                metavar="SIZE",
                help="what all local processes may take, e.g. 8G (default: what is available)",
            )
            command.add_argument(
                "--dask",
                metavar="ADDRESS",
                help="build on this Dask cluster instead, e.g. tcp://scheduler:8786",
            )
            cache_cli.add_build_options(command)
    return parser


@contextmanager
def _exclusive(out: Path, errors: Console) -> Iterator[None]:
    """Keep other builds out of an output directory: its work folders are those of any build."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        descriptor = os.open(out, os.O_RDONLY)
    except OSError as error:
        raise OptionError(
            f"--out: {out} cannot be written: {error.strerror}\n"
            "hint: choose another directory with --out"
        ) from error
    try:
        # The directory itself is locked: a build that is refused leaves nothing in it.
        with suppress(OSError):  # a network file system may lock no directories
            lock(
                descriptor,
                waits=lambda: errors.print(f"{out}: another build is running, waiting for it"),
            )
        yield
    finally:
        os.close(descriptor)


def _out_directory(options: argparse.Namespace) -> Path:
    out: Path = options.out if options.out is not None else options.root / "out"
    return out.resolve()


def _backends(target: str) -> list[str]:
    names = list(BACKENDS) if target == "all" else list(dict.fromkeys(target.split(",")))
    for name in names:
        if name not in BACKENDS:
            raise OptionError(f"--target: is {name!r}, must be one of {', '.join(BACKENDS)}")
    return names


def _without_archs(options: argparse.Namespace) -> list[str]:
    """Return the backends for which --archs leaves nothing: one list serves all of them."""
    archs = set(options.archs.split(",") if options.archs else ())
    return [n for n in _backends(options.target) if archs and archs.isdisjoint(KNOWN_ARCHS[n])]


def _variants(
    specs: Sequence[OperatorSpec], options: argparse.Namespace
) -> dict[str, tuple[Variant, ...]]:
    """Return the selected variants of each backend; a glob may fit one backend's keys only."""
    backends = _backends(options.target)
    archs = options.archs.split(",") if options.archs else None
    profile = options.profile
    if is_profile_file(profile):
        profile, specs = load_profile(Path(profile), specs)
    variants = tuple(v for name in backends for spec in specs for v in expand(spec, name, archs))
    others = [
        v for name in BACKENDS if name not in backends for s in specs for v in expand(s, name)
    ]
    chosen = select(variants, profile=profile, only=options.only, other_targets=others)
    return {
        name: tuple(variant for variant in chosen if variant.key.target.backend == name)
        for name in backends
        if any(variant.key.target.backend == name for variant in chosen)
    }


def _list(chosen: dict[str, tuple[Variant, ...]], shard: Shard | None) -> int:
    for variants in chosen.values():
        for variant in variants if shard is None else deal(variants, shard):
            print(variant.key)
    return EXIT_OK


def _lower(chosen: dict[str, tuple[Variant, ...]], layout: Layout) -> int:
    for backend, variants in chosen.items():
        for variant in variants:
            lowered = lower_variant(variant, layout.kernels)
            folder = layout.out / "lowered" / backend / variant.key.target.arch
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{variant.key}{BACKENDS[backend].source_suffix}"
            path.write_text(lowered.source)
            print(path)
    return EXIT_OK


def _pack(
    chosen: dict[str, tuple[Variant, ...]],
    layout: Layout,
    options: argparse.Namespace,
    errors: Console,
) -> int:
    failures: list[Failure] = []
    for backend, variants in chosen.items():
        with watch(backend, len(variants)) as observe:
            count, failed = pack(
                variants,
                layout=layout,
                backend=backend,
                jobs=options.jobs,
                machine=options.machine,
                observe=observe,
            )
        failures += failed
        directory = sources_directory(layout, backend)
        print(f"{count} sources in {directory}")
        print(f"complete them with: python -m tilewheel_build finish {directory}")
    return build_cli.tell_failures(failures, errors)


def _finish(layout: Layout, options: argparse.Namespace, errors: Console) -> int:
    with watch("finish", len(list(options.directory.glob("*/facts.json")))) as observe:
        count, failures = finish(
            options.directory,
            layout=layout,
            jobs=options.jobs,
            machine=options.machine,
            timeout_s=options.compile_timeout,
            observe=observe,
        )
    print(f"{count} artifacts, {len(failures)} failed")
    return build_cli.tell_failures(failures, errors)


def _verify(artifacts: Path, target: str, errors: Console) -> int:
    directories = [artifacts / name for name in _backends(target)]
    found = [path for path in directories if path.is_dir()]
    if not found:
        errors.print(f"{artifacts}: has no artifacts\nhint: run `make build`")
        return EXIT_NOTHING
    problems = [problem for path in found for problem in verify_directory(path)]
    for problem in problems:
        errors.print(problem)
    print(f"{len(found)} manifests, {len(problems)} problems")
    return EXIT_CHECK if problems else EXIT_OK
