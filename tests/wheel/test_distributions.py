"""What the distributions say of themselves, their sdists, their index and the bundle."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewheel.manifest import RUNTIME_ABI
from tilewheel.version import VERSION

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "wheels"
DISTRIBUTIONS = ("tilewheel", "tilewheel-cu13", "tilewheel-ascend", "tilewheel-ascend-sim")


def pyproject(name: str) -> dict[str, Any]:
    return tomllib.loads((WHEELS / name / "pyproject.toml").read_text())


def build_requires(name: str) -> list[str]:
    """Return what a build without ready artifacts requires beside scikit-build-core."""
    overrides = pyproject(name)["tool"]["scikit-build"]["overrides"]
    (requires,) = (item["build"]["requires"] for item in overrides if "build" in item)
    found: list[str] = requires
    return found


def script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(WHEELS / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def build(
    source: Path, dist: Path, *arguments: str, python: str = sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(dist)]
    return subprocess.run(
        [*command, *arguments, str(source)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    return root


def test_second_number_of_the_version_is_the_runtime_abi() -> None:
    assert re.fullmatch(rf"0\.{RUNTIME_ABI}\.\d+", VERSION)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_version_has_one_source(name: str) -> None:
    tree = pyproject(name)
    assert "version" not in tree["project"]
    (version,) = tree["tool"]["dynamic-metadata"]
    source = (WHEELS / name / version["input"]).resolve()
    assert source == ROOT / "runtime" / "tilewheel" / "version.py"


def test_nothing_else_states_the_version() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"] == ["version"]
    others = [*WHEELS.rglob("*.toml"), *WHEELS.rglob("*.md"), *WHEELS.glob("*.py")]
    assert [path for path in others if VERSION in path.read_text()] == []


@pytest.mark.parametrize("name", DISTRIBUTIONS[1:])
def test_tools_that_a_build_requires_are_those_of_the_workspace(name: str) -> None:
    pinned = (ROOT / "requirements-dev.txt").read_text().splitlines()
    requires = build_requires(name)
    assert len(requires) >= 7
    assert set(requires) <= set(pinned)
    from tilewheel_build.backends import BACKENDS

    target = pyproject(name)["tool"]["scikit-build"]["cmake"]["define"]["TILEWHEEL_TARGET"]
    named = {line.partition("==")[0] for line in requires}
    assert {*BACKENDS[target].packages, "ziglang", "apache-tvm-ffi"} <= named


def test_data_of_another_abi_is_refused_by_the_resolver(
    make_environment: Callable[..., Any], dist: Path, tmp_path: Path
) -> None:
    major = f"0.{RUNTIME_ABI + 1}.0"
    (old,) = dist.glob("tilewheel-*.whl")
    with (
        zipfile.ZipFile(old) as source,
        zipfile.ZipFile(tmp_path / old.name.replace(VERSION, major), "w") as target,
    ):
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("/METADATA"):
                content = content.replace(
                    f"Version: {VERSION}".encode(), b"Version: " + major.encode()
                )
            target.writestr(name.replace(VERSION, major), content)
    fresh = make_environment("torch", "apache-tvm-ffi")
    links = ("--no-index", "--find-links", str(dist), "--find-links", str(tmp_path))
    done = fresh.pip("install", *links, f"tilewheel=={major}", "tilewheel-cu13")
    assert done.returncode != 0
    assert f"tilewheel-cu13 {VERSION} depends on tilewheel==0.{RUNTIME_ABI}.*" in done.stdout
    assert not list(fresh.site.glob("tilewheel*"))


def test_runtime_from_its_sdist_is_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    (sdist,) = dist.glob("tilewheel-*.tar.gz")
    (wheel,) = dist.glob("tilewheel-*.whl")
    done = build(unpacked(sdist, tmp_path / "source"), tmp_path / "dist")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "dist" / wheel.name).read_bytes() == wheel.read_bytes()


def test_sdist_of_artifacts_builds_them_with_what_it_requires(
    make_environment: Callable[..., Any], dist: Path, tmp_path: Path
) -> None:
    import check_wheel

    key = "topk_gate-num_experts=any-num_topk=any-cuda-sm_90a"
    (sdist,) = dist.glob("tilewheel_cu13-*.tar.gz")
    (wheel,) = dist.glob("tilewheel_cu13-*.whl")
    options = [
        *("-C", "cmake.define.TILEWHEEL_PROFILE=smoke"),
        *("-C", f"cmake.define.TILEWHEEL_ONLY={key}"),
    ]
    # As in a build environment that pip made, with nothing of the workspace.
    tools = [line.partition("==")[0] for line in build_requires("tilewheel-cu13")]
    isolated = make_environment(*tools, "scikit-build-core", "cmake", "ninja", "build")
    source = unpacked(sdist, tmp_path / "source")
    python = str(isolated.root / "bin" / "python")
    done = build(source, tmp_path / "dist", *options, python=python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert check_wheel.check(tmp_path / "dist" / wheel.name) == []
    name = f"tilewheel_cu13/sm_90a/{key}.so"
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(tmp_path / "dist" / wheel.name) as other:
        assert [item for item in other.namelist() if item.endswith(".so")] == [name]
        assert other.read(name) == ours.read(name)


def test_ascend_wheel_without_cann_says_how_to_build_it(tmp_path: Path, needs_tools: None) -> None:
    no_cann = {"BISHENG_HOME": "", "ASCEND_HOME_PATH": "", "ASCEND_TOOLKIT_HOME": ""}
    only = ("-C", "cmake.define.TILEWHEEL_PROFILE=smoke")
    done = build(WHEELS / "tilewheel-ascend", tmp_path, *only, **no_cann)
    assert done.returncode != 0
    printed = " ".join((done.stdout + done.stderr).split())
    assert "bisheng: is not installed (looked in PATH), must be the one of CANN 9.1" in printed
    assert "tilewheel-ascend is built on a machine with CANN 9.1 or newer" in printed
    assert not list(tmp_path.iterdir())


def test_ascend_sdist_needs_no_cann(tmp_path: Path, needs_tools: None) -> None:
    import check_wheel

    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--sdist",
        "--outdir",
        str(tmp_path),
    ]
    subprocess.run([*command, str(WHEELS / "tilewheel-ascend")], check=True)
    (sdist,) = tmp_path.iterdir()
    assert check_wheel.check(sdist) == []


def test_make_wheels_reports_what_it_cannot_do(tmp_path: Path) -> None:
    done = script("make_wheels.py", "--target", "rocm")
    assert (done.returncode, done.stderr) == (
        2,
        "--target: is 'rocm', must be one of runtime, cuda, ascend, ascend-sim\n",
    )
    done = script("make_wheels.py", "--machines", "x86_64,riscv64")
    assert (done.returncode, done.stderr) == (
        2,
        "--machines: is 'riscv64', must be one of x86_64, aarch64\n",
    )
    places = ("--out", str(tmp_path / "out"), "--dist", str(tmp_path / "dist"))
    done = script("make_wheels.py", "--ready", "--target", "cuda", *places)
    assert done.returncode == 3
    assert done.stderr == (
        f"{tmp_path}/out/artifacts/cuda: has no manifest\nhint: run `make build`\n"
    )
    assert not (tmp_path / "dist").exists()


def test_caches_reach_the_build() -> None:
    import make_wheels
    from distributions import of_target

    options = make_wheels._parser().parse_args(["--cache", "/a b", "--remote-cache", "s3://b/c"])
    command = make_wheels.build_command(options, "x86_64", [of_target("cuda")])
    assert command[-4:] == ["--cache", "/a b", "--remote-cache", "s3://b/c"]
    options = make_wheels._parser().parse_args([])
    plain = make_wheels.build_command(options, "x86_64", [of_target("cuda")])
    assert not [word for word in plain if "cache" in word]


def test_build_that_fails_is_reported_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs_tools: None
) -> None:
    monkeypatch.setenv("SKBUILD_CMAKE_SOURCE_DIR", str(tmp_path / "nowhere"))
    done = script("make_wheels.py", "--target", "runtime", "--dist", str(tmp_path / "dist"))
    assert done.returncode == 1
    assert "nowhere" in done.stderr
    assert done.stderr.endswith(f"{WHEELS}/tilewheel: cannot be built, see above\n")


def test_runtime_alone_needs_no_artifacts(dist: Path, tmp_path: Path) -> None:
    places = ("--out", str(tmp_path / "out"), "--dist", str(tmp_path / "dist"))
    done = script("make_wheels.py", "--target", "runtime", "--sdist", *places)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "dist").iterdir()}
    assert names == {path.name for path in dist.glob("tilewheel-*")}


def test_older_files_of_a_distribution_are_replaced(dist: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dist"
    folder.mkdir()
    stale = ["tilewheel-0.0.9-py3-none-any.whl", "tilewheel_cu13-0.0.9.tar.gz"]
    kept = ["tilewheel_ascend-0.0.9.tar.gz", "notes.txt"]
    for name in (*stale, *kept):
        (folder / name).touch()
    out = dist.parent / "out"
    places = ("--out", str(out), "--dist", str(folder))
    done = script("make_wheels.py", "--ready", "--target", "cuda", *places)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in folder.iterdir()}
    assert names >= set(kept)
    assert not names & set(stale)
    for path in folder.glob(f"*-{VERSION}-*.whl"):
        assert path.read_bytes() == (dist / path.name).read_bytes()  # byte for byte, built again


def test_index_is_what_pip_installs_from(
    make_environment: Callable[..., Any], dist: Path, tmp_path: Path
) -> None:
    for path in dist.glob("*.whl"):
        shutil.copy(path, tmp_path)
    done = script("make_index.py", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/simple: 3 projects, 3 files\n")
    fresh = make_environment("torch", "apache-tvm-ffi")
    index = ("--index-url", (tmp_path / "simple").as_uri())
    done = fresh.pip("install", "--no-compile", *index, "tilewheel[ascend-sim]")
    assert done.returncode == 0, done.stderr
    assert (fresh.site / "tilewheel_ascend_sim" / "manifest.json").is_file()

    page = (tmp_path / "simple" / "tilewheel" / "index.html").read_text()
    (wheel,) = tmp_path.glob("tilewheel-*.whl")
    assert f'#sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}"' in page
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    done = fresh.pip("download", "--no-deps", "--dest", str(tmp_path / "x"), *index, "tilewheel")
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_index_of_nothing_is_refused(tmp_path: Path) -> None:
    done = script("make_index.py", str(tmp_path))
    assert done.returncode == 3
    assert done.stderr.endswith("has no wheel and no sdist\nhint: run `make wheel`\n")
    (tmp_path / "other-1.0.tar.gz").touch()
    done = script("make_index.py", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("other-1.0.tar.gz: is no wheel or sdist of this project")


def test_ascend_wheel_of_stand_in_compilers_is_sound(tmp_path: Path, needs_tools: None) -> None:
    import check_wheel

    key = "topk_gate-num_experts=any-num_topk=any-num_vec_cores=any-ascend-dav_3510"
    spec = importlib.util.spec_from_file_location(
        "pipeline_conftest", ROOT / "tests" / "pipeline" / "conftest.py"
    )
    assert spec is not None
    assert spec.loader is not None
    pipeline = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = pipeline  # dataclasses look their module up
    spec.loader.exec_module(pipeline)
    cann = pipeline.StandInToolchain.create(tmp_path / "cann")
    command = [sys.executable, str(WHEELS / "make_wheels.py"), "--target", "ascend"]
    command += ["--profile", "smoke", "--only", key, "--jobs", "1"]
    places = ["--out", str(tmp_path / "out"), "--dist", str(tmp_path / "dist")]
    environment = {**os.environ, **cann.variables}
    done = subprocess.run(
        [*command, *places], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "dist").glob("tilewheel_ascend-*.whl")
    assert check_wheel.check(wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if name.endswith(".so")]
        assert files == [f"tilewheel_ascend/dav_3510/{key}.so"]
        assert b"ld.lld,bisheng," in archive.read(files[0])
