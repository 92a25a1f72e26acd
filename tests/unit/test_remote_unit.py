"""A unit that travels: what it brings along, and what a machine that differs says."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tilewheel_build import remote_unit as module
from tilewheel_build.cache import store
from tilewheel_build.entry import check, read_directory, unpack
from tilewheel_build.errors import CompilationError, ToolchainError
from tilewheel_build.fingerprint import fingerprint
from tilewheel_build.remote_unit import RemoteUnit, build_remote_unit
from tilewheel_build.spec import load_spec
from tilewheel_build.unit import Unit
from tilewheel_build.variant import expand

DATA = Path(__file__).parent / "data"
VARIANT = expand(load_spec(DATA / "specs/quant/cast.yaml", root=DATA), "cuda")[0]
KERNEL = VARIANT.backend.kernel
NAME = "tilewheel_kernels." + KERNEL.removesuffix(".py").replace("/", ".")


@pytest.fixture
def travelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RemoteUnit]:
    """Return the function that makes a unit whose kernel file has some content, with siblings."""
    # The machine of these tests need not have the compilers.
    tools = {"nvcc": "1", "tilelang": "2"}
    backend = dataclasses.replace(
        module.BACKENDS["cuda"], packages=(), find_tools=lambda: tuple(tools.items())
    )
    monkeypatch.setitem(module.BACKENDS, "cuda", backend)
    monkeypatch.setattr("tilewheel_build.backends.package_versions", lambda names: ())

    def make(content: str, *siblings: Path) -> RemoteUnit:
        root = tmp_path / content
        path = root / "tilewheel_kernels" / KERNEL
        path.parent.mkdir(parents=True)
        path.write_text(f"VALUE = {content!r}\n")
        inputs = module._inputs(VARIANT, root, "x86_64")
        unit = Unit(
            variant=VARIANT,
            fingerprint=fingerprint(inputs),
            kernels_root=root,
            cache=root / "cache",
            work=root / "work",
            machine="x86_64",
            timeout_s=1.0,
            siblings=siblings,
        )
        return module.remote_unit(unit)

    return make


def import_kernel(unit: Unit) -> str:
    sys.path.insert(0, str(unit.kernels_root))
    value: str = importlib.import_module(NAME).VALUE
    return value


def build(unit: Unit) -> None:
    store(unit.cache, {"artifact.so": import_kernel(unit).encode()})


def test_entry_comes_back_built_from_the_sources_that_came_along(
    travelling: Callable[[str], RemoteUnit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "build_unit", build)
    path = list(sys.path)
    for content in ("one", "two"):
        unit = travelling(content)
        outcome = build_remote_unit(unit, tmp_path / "scratch")
        files = unpack(outcome.content)
        assert (outcome.error, files["artifact.so"]) == (None, content.encode())
        check(files, unit.fingerprint)
    assert sys.path == path
    assert not [name for name in sys.modules if name.startswith("tilewheel_kernels")]
    assert [p for p in (tmp_path / "scratch").rglob("*") if p.is_file()] == []


def test_siblings_come_along(
    travelling: Callable[..., RemoteUnit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sibling, removed = tmp_path / ("5" * 64), tmp_path / ("6" * 64)
    store(sibling, {"artifact.so": b"for another processor"})
    there: list[dict[str, bytes]] = []

    def look(unit: Unit) -> None:
        assert [path.name for path in unit.siblings] == [sibling.name]
        there.extend(read_directory(path) for path in unit.siblings)
        build(unit)

    monkeypatch.setattr(module, "build_unit", look)
    outcome = build_remote_unit(travelling("one", sibling, removed), tmp_path / "scratch")
    assert outcome.error is None
    assert there == [read_directory(sibling)]
    assert [p for p in (tmp_path / "scratch").rglob("*") if p.is_file()] == []


def test_error_comes_back_with_the_work_directory(
    travelling: Callable[[str], RemoteUnit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(unit: Unit) -> None:
        unit.work.mkdir()
        (unit.work / "kernel.cu").write_text("text")
        raise CompilationError("is wrong")

    monkeypatch.setattr(module, "build_unit", fail)
    outcome = build_remote_unit(travelling("one"), tmp_path / "scratch")
    assert isinstance(outcome.error, CompilationError)
    assert unpack(outcome.content) == {"kernel.cu": b"text"}
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "toolchain",
            {"nvcc": "0", "tilelang": "2"},
            "the worker differs in toolchain: nvcc is 1, must be 0\n",
        ),
        ("driver", "other", "the worker differs in driver: its own files\n"),
    ],
)
def test_machine_with_other_tools_or_sources_refuses(
    travelling: Callable[[str], RemoteUnit],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    field: str,
    value: object,
    message: str,
) -> None:
    monkeypatch.setattr(module, "build_unit", lambda unit: pytest.fail("is built"))
    unit = travelling("one")
    inputs: dict[str, Any] = {**unit.inputs, field: value}
    other = dataclasses.replace(unit, inputs=inputs, fingerprint=fingerprint(inputs))
    error = build_remote_unit(other, tmp_path / "scratch").error
    assert isinstance(error, ToolchainError)
    assert str(error).startswith(message)
    assert "hint: install the same checkout" in str(error)


def test_one_process_builds_one_unit_at_a_time(
    travelling: Callable[[str], RemoteUnit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = threading.Lock()

    def hold(unit: Unit) -> None:
        assert alone.acquire(blocking=False)
        time.sleep(0.1)
        alone.release()
        build(unit)

    monkeypatch.setattr(module, "build_unit", hold)
    units = [travelling(content) for content in ("one", "two", "three")]
    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(lambda unit: build_remote_unit(unit, tmp_path / "s"), units))
    assert [outcome.error for outcome in outcomes] == [None, None, None]
