"""The distributions, what each may contain, and how the names of their files are read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

GLIBC_TAG = "manylinux_2_28"
"""The platform of data wheels: launchers are compiled for this glibc on any machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One distribution. ``target`` is the backend of its artifacts, or ``runtime``.

    ``budget_bytes`` bounds the wheel: the CUDA one is the budget of a release for one architecture.
    """

    name: str
    package: str
    target: str
    budget_bytes: int

    @property
    def directory(self) -> Path:
        """Where its pyproject.toml is."""
        return ROOT / "wheels" / self.name


RUNTIME = Distribution(
    name="tilewheel", package="tilewheel", target="runtime", budget_bytes=1_000_000
)
DISTRIBUTIONS = (
    RUNTIME,
    Distribution(
        name="tilewheel-cu13", package="tilewheel_cu13", target="cuda", budget_bytes=100_000_000
    ),
    Distribution(
        name="tilewheel-ascend",
        package="tilewheel_ascend",
        target="ascend",
        budget_bytes=100_000_000,
    ),
    Distribution(
        name="tilewheel-ascend-sim",
        package="tilewheel_ascend_sim",
        target="ascend-sim",
        budget_bytes=50_000_000,
    ),
)

_FILE = re.compile(
    r"(?P<name>[a-z0-9_]+)-(?P<version>[0-9][0-9a-z.+]*)"
    r"(-(?P<tag>[a-z0-9]+-[a-z0-9]+-[a-z0-9_.]+)\.whl|\.tar\.gz)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileName:
    """What the name of a wheel or sdist says; ``tag`` is empty for an sdist."""

    distribution: Distribution
    version: str
    tag: str

    @property
    def machine(self) -> str:
        """The processor of a data wheel; empty for a wheel of any and for an sdist."""
        _, separator, machine = self.tag.partition(f"{GLIBC_TAG}_")
        return machine if separator else ""


def parse_file_name(name: str) -> FileName:
    """Read the name of one of this project's files.

    Raises:
        ValueError: it is no such name.
    """
    match = _FILE.fullmatch(name)
    found = [d for d in DISTRIBUTIONS if match and d.name.replace("-", "_") == match["name"]]
    if match is None or not found:
        known = ", ".join(distribution.name for distribution in DISTRIBUTIONS)
        raise ValueError(f"{name}: is no wheel or sdist of this project, must be of {known}")
    return FileName(distribution=found[0], version=match["version"], tag=match["tag"] or "")


def of_target(target: str) -> Distribution:
    """Return the distribution of the runtime or of a backend's artifacts.

    Raises:
        ValueError: none has that target.
    """
    for distribution in DISTRIBUTIONS:
        if distribution.target == target:
            return distribution
    known = ", ".join(d.target for d in DISTRIBUTIONS)
    raise ValueError(f"--target: is {target!r}, must be one of {known}")
