"""A small checkout with operators of its own, built once, and the means to call its artifacts."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
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
    backend: str = "cuda"
    arch: str = "sm_90a"

    @property
    def artifacts(self) -> Path:
        return self.out / "artifacts" / self.backend

    def artifact(self, key: str) -> Path:
        return self.artifacts / self.arch / f"{key}.so"

    def launcher(self, key: str) -> str:
        """Return the C source of an artifact's launcher, as the build keeps it."""
        texts = [path.read_text() for path in self.out.glob("cache/*/launcher.c")]
        (text,) = (text for text in texts if text.startswith(f"/* Launcher of {key},"))
        return text

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

    def start(self, name: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start one command of the driver; what it prints comes through one pipe."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(
            self.command(name, *arguments), text=True, env=environment(), **{**pipes, **options}
        )

    def published(self) -> dict[str, bytes]:
        """Return the content of every published file."""
        paths = sorted(path for path in self.artifacts.rglob("*") if path.is_file())
        return {path.relative_to(self.artifacts).as_posix(): path.read_bytes() for path in paths}

    def leftovers(self) -> list[str]:
        """Return every path of the output that only a build in progress may have."""
        paths = [*self.out.glob(f"artifacts/.{self.backend}-*"), *self.out.glob("cache/.*")]
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


STAND_IN = """\
#!/bin/sh
# Stands in for a tool of CANN: records its call and copies the input to the output.
folder=$(dirname "$0")
if [ "$1" = --version ]; then
  echo "stand-in bisheng 9.1.0"
  echo "InstalledDir: $folder"
  exit 0
fi
echo "NAME $*" >> "$folder/calls.txt"
case "NAME $(cat "$folder/mode")" in
  "bisheng fail") echo "kernel.asc:7: no such intrinsic" >&2; exit 3 ;;
  *hang) sleep 1000 ;;
esac
while [ $# -gt 3 ]; do shift; done
{ printf NAME,; cat "$1"; } > "$3"
"""


@dataclass(frozen=True)
class StandInToolchain:
    """bisheng and ld.lld as scripts: they record their calls, and fail or hang when told to."""

    home: Path

    @classmethod
    def create(cls, home: Path) -> StandInToolchain:
        (home / "bin").mkdir(parents=True)
        for name in ("bisheng", "ld.lld"):
            (home / "bin" / name).write_text(STAND_IN.replace("NAME", name))
            (home / "bin" / name).chmod(0o755)
        toolchain = cls(home)
        toolchain.behave("well")
        return toolchain

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment in which the driver finds these tools and no others."""
        return {**NO_CANN, "BISHENG_HOME": str(self.home)}

    def behave(self, mode: str) -> None:
        """Make the tools work (``well``), ``fail`` or ``hang``; forget the calls so far."""
        (self.home / "bin" / "mode").write_text(mode)
        (self.home / "bin" / "calls.txt").write_text("")

    @property
    def calls(self) -> list[str]:
        return sorted((self.home / "bin" / "calls.txt").read_text().splitlines())


NO_CANN = {"BISHENG_HOME": "", "ASCEND_HOME_PATH": "", "ASCEND_TOOLKIT_HOME": ""}


@pytest.fixture(scope="session")
def no_cann() -> dict[str, str]:
    """Return the variables that hide a CANN of this machine."""
    return NO_CANN


@pytest.fixture
def stand_in(tmp_path: Path) -> StandInToolchain:
    """Return a stand-in for CANN's compilers that the test may command."""
    return StandInToolchain.create(tmp_path / "cann")


@pytest.fixture(scope="session")
def ascend_built(tmp_path_factory: pytest.TempPathFactory, needs_compilers: None) -> Checkout:
    """Return a checkout with one operator for Ascend, built by a stand-in compiler.

    It is built for the simulator as well. Tests read it and leave it as it is.
    """
    base = tmp_path_factory.mktemp("ascend")
    shutil.copytree(HERE / "ascend", base / "tree")
    checkout = Checkout(root=base / "tree", out=base / "out", backend="ascend", arch="dav_3510")
    variables = StandInToolchain.create(base / "cann").variables
    chosen = ("--only", "*-ascend-*", "--only", "*-staged=true-ascend_sim-*")
    done = checkout.run(
        "build", "--target", "ascend,ascend-sim", *chosen, "--jobs", "1", **variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return checkout


@pytest.fixture(scope="session")
def ascend_sources(ascend_built: Checkout) -> Path:
    """Return what ``build --source-only`` wrote for the same checkout, where there is no CANN."""
    out = ascend_built.out.with_name("packed")
    checkout = replace(ascend_built, out=out)
    done = checkout.run("build", "--source-only", "--target", "ascend", "--jobs", "1", **NO_CANN)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "sources" / "ascend"
