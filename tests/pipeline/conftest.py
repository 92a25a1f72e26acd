"""A small checkout with operators of its own, built once, and the means to call its artifacts."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]


@dataclass(frozen=True)
class Checkout:
    """A source tree and the directory that its build writes to."""

    root: Path
    out: Path

    @property
    def artifacts(self) -> Path:
        return self.out / "artifacts" / "cuda"

    def artifact(self, key: str) -> Path:
        return self.artifacts / "sm_90a" / f"{key}.so"

    def kernel(self, name: str) -> Path:
        return self.root / "kernels" / "tilewheel_kernels" / "probe" / name

    def command(self, name: str, *arguments: str) -> list[str]:
        places = ["--root", str(self.root), "--out", str(self.out)]
        return [sys.executable, "-m", "tilewheel_build", name, *places, *arguments]

    def run(self, name: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run one command of the driver in a process of its own."""
        return subprocess.run(
            self.command(name, *arguments),
            capture_output=True,
            text=True,
            timeout=300,
            env={**environment(), **options},
            check=False,
        )

    def published(self) -> dict[str, bytes]:
        """Return the content of every published file."""
        paths = sorted(path for path in self.artifacts.rglob("*") if path.is_file())
        return {path.relative_to(self.artifacts).as_posix(): path.read_bytes() for path in paths}

    def leftovers(self) -> list[str]:
        """Return every path of the output that only a build in progress may have."""
        paths = [*self.out.glob("artifacts/.cuda-*"), *self.out.glob("cache/.*")]
        paths += [*self.out.glob("work/*")]
        return sorted(path.relative_to(self.out).as_posix() for path in paths)


def environment() -> dict[str, str]:
    """Return this process's environment with the repository's packages on the path."""
    paths = [str(REPOSITORY / "runtime"), str(REPOSITORY / "build")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="session")
def needs_compilers() -> None:
    """Skip where this machine cannot compile CUDA kernels."""
    for module in ("tilelang", "ziglang", "elftools"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, needs_compilers: None) -> Checkout:
    """Return the small checkout, built; tests read it and leave it as it is."""
    base = tmp_path_factory.mktemp("built")
    shutil.copytree(HERE / "checkout", base / "tree")
    checkout = Checkout(root=base / "tree", out=base / "out")
    done = checkout.run("build", "--jobs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    return checkout


@pytest.fixture
def copy(built: Checkout, tmp_path: Path) -> Checkout:
    """Return a copy of the built checkout that the test may change."""
    shutil.copytree(built.root, tmp_path / "tree")
    shutil.copytree(built.out, tmp_path / "out", ignore=shutil.ignore_patterns("zig"))
    # What zig compiled of the C library serves every copy.
    (tmp_path / "out" / "cache" / "zig").symlink_to(built.out / "cache" / "zig")
    return Checkout(root=tmp_path / "tree", out=tmp_path / "out")


@pytest.fixture(scope="session")
def claimed() -> Callable[..., Any]:
    """Return the function that makes a tensor which claims to be on a device."""
    spec = importlib.util.spec_from_file_location("claimed", HERE / "claimed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., Any] = module.claimed
    return function


@pytest.fixture(scope="session")
def load(built: Checkout) -> Callable[[str], Any]:
    """Return the function that loads an artifact of the small checkout by its key."""
    from tilewheel.ffi import tvm_ffi

    return lambda key: tvm_ffi().load_module(str(built.artifact(key)))
