"""Wheels of the smoke profile, made once from cached artifacts, and fresh environments for them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "wheels"
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]

# The scripts below wheels/ import each other by name, as when they are run; so do the test files
# what they share.
sys.path[:0] = [str(WHEELS), str(Path(__file__).parent)]


def make(out: Path, dist: Path, *arguments: str) -> None:
    """Run make_wheels.py with the checkout's cache and artifacts of its own."""
    (ROOT / "out" / "cache").mkdir(parents=True, exist_ok=True)
    out.mkdir()
    (out / "cache").symlink_to(ROOT / "out" / "cache")
    done = subprocess.run(
        [
            *(sys.executable, str(WHEELS / "make_wheels.py"), "--profile", "smoke"),
            *("--out", str(out), "--dist", str(dist), *arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def needs_tools() -> None:
    """Skip where this machine cannot build wheels."""
    for module in ("tilelang", "ziglang", "scikit_build_core", "build", "auditwheel"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory, needs_tools: None) -> Path:
    """Return a folder with the wheels for this processor and the sdists."""
    base = tmp_path_factory.mktemp("wheels")
    make(base / "out", base / "dist", "--target", "cuda,ascend-sim", "--sdist")
    return base / "dist"


@pytest.fixture(scope="session")
def other_dist(tmp_path_factory: pytest.TempPathFactory, dist: Path) -> Path:
    """Return a folder with a small wheel of CUDA artifacts for the other processor."""
    base = tmp_path_factory.mktemp("other")
    only = ("--only", "topk_gate-num_experts=any-*-cuda-sm_90a")
    make(base / "out", base / "dist", "--target", "cuda", "--machines", OTHER, *only)
    return base / "dist"


@pytest.fixture
def sound(other_dist: Path) -> Path:
    """Return a wheel with one CUDA artifact, for the processor that this machine does not have."""
    (path,) = other_dist.glob("tilewheel_cu13-*.whl")
    return path


@pytest.fixture
def members(sound: Path) -> dict[str, bytes]:
    from tampering import read

    return read(sound)


@pytest.fixture
def tampered(sound: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """Return the function that checks a wheel of the sound one's name with other members."""
    from tampering import check, write

    return lambda members, **options: check(write(tmp_path / sound.name, members, **options))


@dataclass(frozen=True)
class Environment:
    """A virtual environment with torch and nothing else.

    What runs in it fails on whatever writes a file, starts a process or connects, by the
    sitecustomize module in ``watch``; its home cannot be written and its PATH has no compiler.
    """

    root: Path
    watch: Path

    @property
    def site(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.root / "lib" / version / "site-packages"

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run this machine's pip on the environment, which has none."""
        command = [sys.executable, "-m", "pip", "--python", str(self.root / "bin" / "python")]
        return subprocess.run(
            [*command, *arguments],
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    def install(self, *arguments: str, links: Path) -> None:
        done = self.pip("install", "--no-index", "--find-links", str(links), *arguments)
        assert done.returncode == 0, done.stderr

    def run(self, program: str, *arguments: str, **variables: str) -> str:
        """Run a program of the environment and return what it prints; it must succeed."""
        done = self.start(program, *arguments, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(
        self, program: str, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / "bin" / program), *arguments],
            env={
                "PATH": str(self.root / "bin"),
                # A directory below a device cannot be made, not even by root.
                "HOME": "/dev/null/home",
                "PYTHONPATH": str(self.watch),
                "PYTHONDONTWRITEBYTECODE": "1",
                **variables,
            },
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def files(self) -> list[str]:
        """Return every path of the environment, without what links lead to."""
        return sorted(
            str(Path(folder) / name)
            for folder, folders, names in os.walk(self.root)
            for name in (*folders, *names)
        )


@pytest.fixture(scope="session")
def make_environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    """Return the function that makes a fresh environment with links to installed packages."""
    pytest.importorskip("torch")
    watch = tmp_path_factory.mktemp("watch")
    shutil.copyfile(ROOT / "tests" / "bare.py", watch / "sitecustomize.py")

    def create(*distributions: str) -> Environment:
        environment = Environment(tmp_path_factory.mktemp("environment") / "env", watch)
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(environment.root)], check=True
        )
        names = {name for start in distributions for name in closure(start)}
        for name in sorted(names):
            link(name, environment.site)
        return environment

    return create


def closure(distribution: str) -> Iterator[str]:
    """Yield a distribution and what it requires here."""
    waiting, seen = [distribution], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        yield name
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)


def link(distribution: str, site: Path) -> None:
    """Make an installed distribution, with its metadata, part of another environment."""
    found = importlib.metadata.distribution(distribution)
    tops = {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}
    for top in tops:
        target = site / top
        if not target.exists():
            target.symlink_to(str(found.locate_file(top)))
