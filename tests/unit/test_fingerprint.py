"""What a fingerprint depends on, and what it does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewheel_build import fingerprint as module
from tilewheel_build.backends import BACKENDS
from tilewheel_build.fingerprint import (
    DRIVER_SOURCES,
    fingerprint,
    fingerprint_inputs,
    kernel_hashes,
)
from tilewheel_build.spec import parse_spec
from tilewheel_build.variant import Variant, expand

SPEC = """\
operator: scale
family: probe
summary: A row times a factor.
source: original
parameters:
  hidden: {type: int, minimum: 64, maximum: 4096, meaning: elements of one row}
grid: {hidden: [128, any]}
profiles: {smoke: all, dev: all, release: all}
dimensions:
  num_tokens: {meaning: rows}
tensors:
  x: {role: in, dtype: float32, shape: [num_tokens, hidden], alignment: 16, meaning: rows}
scalars:
  factor: {dtype: float32, meaning: multiplies}
backends:
  cuda: {kernel: probe/scale_cuda.py, archs: [sm_90a, sm_100a]}
"""


def variants(spec: str = SPEC) -> tuple[Variant, ...]:
    return expand(parse_spec(spec, where="specs/probe/scale.yaml"), "cuda")


def write(root: Path, name: str, text: str) -> None:
    path = root / "tilewheel_kernels" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    root = tmp_path / "kernels"
    write(root, "__init__.py", "")
    write(root, "probe/__init__.py", "")
    write(root, "probe/scale_cuda.py", "from . import arithmetic\n")
    write(root, "probe/arithmetic.py", "import tilewheel_kernels.layout\n")
    write(root, "layout.py", "import math\n")
    write(root, "probe/other_cuda.py", "")
    return root


@pytest.fixture
def make(kernels: Path) -> Callable[..., str]:
    """Return the function that makes a fingerprint, with some inputs changed."""

    def make_one(**changes: Any) -> str:
        inputs = {
            "variant": variants()[0],
            "kernels_root": kernels,
            "machine": "x86_64",
            "toolchain": {"tilelang": "0.1.15"},
            "flags": ("-O3",),
            "sources": ("cuda.py",),
        }
        inputs.update(changes)
        return fingerprint(fingerprint_inputs(inputs.pop("variant"), **inputs))

    return make_one


def test_fingerprint_is_64_hex_digits_and_the_same_each_time(make: Callable[..., str]) -> None:
    assert len(make()) == 64
    assert make() == make()


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": "aarch64"},
        {"toolchain": {"tilelang": "0.1.16"}},
        {"toolchain": {"tilelang": "0.1.15", "ziglang": "0.15.1"}},
        {"flags": ("-O2",)},
        {"sources": ("cuda.py", "ascend.py")},
    ],
)
def test_machine_toolchain_flags_and_driver_change_it(
    make: Callable[..., str], changes: dict[str, Any]
) -> None:
    assert make(**changes) != make()


def test_parameters_and_architecture_change_it(make: Callable[..., str]) -> None:
    assert len({make(variant=variant) for variant in variants()}) == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("alignment: 16", "alignment: 8"),
        ("role: in", "role: inout"),
        ("dtype: float32, meaning: multiplies", "dtype: int32, meaning: multiplies"),
        ("dtype: float32, meaning: multiplies", "dtype: float32, maximum: 2, meaning: multiplies"),
        ("num_tokens: {meaning: rows}", "num_tokens: {meaning: rows, maximum: 9}"),
    ],
)
def test_contract_of_the_spec_changes_it(make: Callable[..., str], old: str, new: str) -> None:
    assert SPEC.count(old) == 1
    assert make(variant=variants(SPEC.replace(old, new))[0]) != make()


def test_limits_of_a_run_time_parameter_change_it(make: Callable[..., str]) -> None:
    other = variants(SPEC.replace("maximum: 4096", "maximum: 8192"))
    assert make(variant=other[1]) != make(variant=variants()[1])
    # A fixed value does not depend on the range that it is from.
    assert make(variant=other[0]) == make(variant=variants()[0])


def test_divisor_of_a_run_time_parameter_changes_it(make: Callable[..., str]) -> None:
    other = variants(SPEC.replace("maximum: 4096", "maximum: 4096, multiple_of: 64"))
    assert make(variant=other[1]) != make(variant=variants()[1])


def test_words_of_the_spec_do_not_change_it(make: Callable[..., str]) -> None:
    other = variants(SPEC.replace("A row times a factor.", "Something else."))
    assert make(variant=other[0]) == make()
    other = variants(SPEC.replace("meaning: rows", "meaning: lines"))
    assert make(variant=other[0]) == make()
    other = variants(SPEC.replace("meaning: multiplies", "meaning: the factor"))
    assert make(variant=other[0]) == make()


@pytest.mark.parametrize(
    "name",
    [
        "__init__.py",
        "probe/__init__.py",
        "probe/scale_cuda.py",
        "probe/arithmetic.py",
        "layout.py",
    ],
)
def test_file_that_the_kernel_imports_changes_it(
    make: Callable[..., str], kernels: Path, name: str
) -> None:
    before = make()
    path = kernels / "tilewheel_kernels" / name
    path.write_text(path.read_text() + "# changed\n")
    assert make() != before


def test_file_that_the_kernel_does_not_import_leaves_it(
    make: Callable[..., str], kernels: Path
) -> None:
    before = make()
    write(kernels, "probe/other_cuda.py", "# changed\n")
    assert make() == before


def test_directory_of_the_kernels_does_not_change_it(
    make: Callable[..., str], kernels: Path
) -> None:
    before = make()
    moved = kernels.parent / "much" / "deeper"
    moved.parent.mkdir()
    kernels.rename(moved)
    assert make(kernels_root=moved) == before


@pytest.mark.parametrize(
    "statement",
    [
        "from .arithmetic import scaled",
        "from . import arithmetic",
        "from ..probe.arithmetic import scaled",
        "from ..probe import arithmetic",
        "import tilewheel_kernels.probe.arithmetic",
        "import tilewheel_kernels.probe.arithmetic as a",
        "from tilewheel_kernels.probe import arithmetic as a",
        "from tilewheel_kernels.probe.arithmetic import scaled",
        "def f():\n    from .arithmetic import scaled",
    ],
)
def test_every_way_to_import_a_module_is_seen(kernels: Path, statement: str) -> None:
    write(kernels, "probe/scale_cuda.py", f"{statement}\n")
    assert sorted(kernel_hashes(kernels, "probe/scale_cuda.py")) == [
        "tilewheel_kernels/__init__.py",
        "tilewheel_kernels/layout.py",
        "tilewheel_kernels/probe/__init__.py",
        "tilewheel_kernels/probe/arithmetic.py",
        "tilewheel_kernels/probe/scale_cuda.py",
    ]


def test_modules_that_import_each_other_are_counted_once(kernels: Path) -> None:
    write(kernels, "layout.py", "from tilewheel_kernels.probe import arithmetic\n")
    assert len(kernel_hashes(kernels, "probe/scale_cuda.py")) == 5


def test_kernel_that_is_no_python_still_has_a_fingerprint(
    make: Callable[..., str], kernels: Path
) -> None:
    write(kernels, "probe/scale_cuda.py", "def (:\n")
    assert len(make()) == 64


def test_sources_of_the_driver_that_decide_on_artifacts_exist() -> None:
    folder = Path(module.__file__).parent
    names = {*DRIVER_SOURCES, *(name for item in BACKENDS.values() for name in item.sources)}
    assert [name for name in sorted(names) if not (folder / name).exists()] == []


def test_kernel_of_the_backend_is_what_is_hashed(make: Callable[..., str]) -> None:
    variant = variants()[0]
    other = dataclasses.replace(variant.backend, kernel="probe/other_cuda.py")
    assert make(variant=dataclasses.replace(variant, backend=other)) != make()
