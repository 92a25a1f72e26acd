"""``make wheel``: build artifacts for each processor, then wheels and sdists of them.

With --ready nothing is compiled: the artifacts that `make build` published are packed.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from distributions import DISTRIBUTIONS, GLIBC_TAG, ROOT, RUNTIME, Distribution, of_target
from tilewheel.manifest import FILE_NAME
from tilewheel_build.driver import Layout
from tilewheel_build.host_compiler import MACHINES


def main(arguments: Sequence[str]) -> int:
    """Write the wheels and sdists of the chosen targets; return the first failure's exit code."""
    options = _parser().parse_args(arguments)
    machines = options.machines.split(",")
    try:
        chosen = _chosen(options.target)
        for machine in machines:
            if machine not in MACHINES:
                known = ", ".join(MACHINES)
                raise ValueError(f"--machines: is {machine!r}, must be one of {known}")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    data = [distribution for distribution in chosen if distribution != RUNTIME]
    for machine in machines if data and not options.ready else ():
        code = subprocess.run(build_command(options, machine, data), check=False).returncode
        if code:
            return code
    layout = Layout(root=ROOT, out=options.out.resolve())
    ready = {
        (distribution, machine): layout.artifacts(machine) / distribution.target
        for distribution in data
        for machine in machines
    }
    for directory in ready.values():
        if not (directory / FILE_NAME).is_file():
            print(f"{directory}: has no manifest\nhint: run `make build`", file=sys.stderr)
            return 3
    dist = options.dist.resolve()
    dist.mkdir(parents=True, exist_ok=True)
    for distribution in chosen:
        # An older version beside the new one would be offered, checked and uploaded with it.
        for old in dist.glob(f"{distribution.name.replace('-', '_')}-[0-9]*"):
            old.unlink()
    try:
        _run_builds(chosen, ready, dist, has_sdists=options.sdist)
    except subprocess.CalledProcessError as error:
        print(f"{error.output}\n{error.cmd[-1]}: cannot be built, see above", file=sys.stderr)
        return 1
    for path in sorted(dist.iterdir()):
        if path.is_file():
            print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
    return 0


def _chosen(target: str) -> tuple[Distribution, ...]:
    """Return the distributions of the targets; the runtime is always one."""
    if target == "all":
        return DISTRIBUTIONS
    return tuple(dict.fromkeys([RUNTIME, *map(of_target, target.split(","))]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--target", default="cuda,ascend-sim", help="backends; runtime for it alone; or all"
    )
    parser.add_argument("--machines", default=platform.machine(), help=", ".join(MACHINES))
    parser.add_argument("--profile", default="dev")
    parser.add_argument("--archs", default="")
    parser.add_argument("--only", default="*", help="glob over keys")
    parser.add_argument("--jobs", default=str(os.cpu_count() or 1))
    parser.add_argument("--cache", help="of built artifacts (default: <out>/cache)")
    parser.add_argument("--remote-cache", help="a second level of it, at a URL")
    parser.add_argument("--out", type=Path, default=ROOT / "out", help="where artifacts are")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where wheels go")
    parser.add_argument("--ready", action="store_true", help="pack what is built already")
    parser.add_argument("--sdist", action="store_true", help="write source distributions too")
    return parser


def build_command(
    options: argparse.Namespace, machine: str, data: Sequence[Distribution]
) -> list[str]:
    """Return the command that builds the artifacts of some distributions for a processor."""
    targets = ",".join(distribution.target for distribution in data)
    caches = (("--cache", options.cache), ("--remote-cache", options.remote_cache))
    return [
        *(sys.executable, "-m", "tilewheel_build", "build"),
        *("--target", targets, "--profile", options.profile, "--archs", options.archs),
        *("--only", options.only, "--jobs", options.jobs, "--machine", machine),
        *("--out", str(options.out)),
        *(word for name, value in caches if value for word in (name, value)),
    ]


def _run_builds(
    chosen: Sequence[Distribution],
    ready: Mapping[tuple[Distribution, str], Path],
    dist: Path,
    *,
    has_sdists: bool,
) -> None:
    _run_build(RUNTIME, dist, "--wheel", {})
    for (distribution, machine), directory in ready.items():
        environment = {
            "TILEWHEEL_WHEEL_ARTIFACTS": str(directory),
            "SKBUILD_WHEEL_TAGS": f"py3-none-{GLIBC_TAG}_{machine}",
        }
        _run_build(distribution, dist, "--wheel", environment)
    for distribution in chosen if has_sdists else ():
        _run_build(distribution, dist, "--sdist", {})


def _run_build(
    distribution: Distribution, dist: Path, kind: str, environment: Mapping[str, str]
) -> None:
    """Run PyPA's build for one file with the tools that are installed here."""
    subprocess.run(
        [
            *(sys.executable, "-m", "build", "--no-isolation", kind),
            *("--outdir", str(dist), str(distribution.directory)),
        ],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
