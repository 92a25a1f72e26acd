"""Two builds of the same sources are the same bytes, wherever and however they are made."""

from __future__ import annotations

import getpass
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from tilewheel_build.cuda import compile_device


@pytest.fixture(scope="module")
def elsewhere(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the checkout built again: deeper, to another output, with caches of its own."""
    base = tmp_path_factory.mktemp("another") / "much" / "deeper" / "place"
    shutil.copytree(built.root, base / "sources")
    checkout = type(built)(root=base / "sources", out=base.parent / "product")
    done = checkout.run(
        "build",
        "--jobs",
        "1",
        PYTHONHASHSEED="7",
        TZ="Asia/Shanghai",
        LANG="de_DE.UTF-8",
        USER="somebody",
        # Variables that nvcc and compilers obey, and that no fingerprint sees.
        NVCC_APPEND_FLAGS="-lineinfo",
        CPATH=str(base),
        SOURCE_DATE_EPOCH="1",
    )
    assert done.returncode == 0, done.stderr
    return checkout


def test_builds_in_two_places_are_byte_identical(built: Any, elsewhere: Any) -> None:
    assert elsewhere.published() == built.published()


def test_nothing_published_names_the_machine_or_a_directory(built: Any) -> None:
    names = [str(built.root.parent), str(Path.home()), str(Path(__file__).parents[2])]
    names += ["site-packages", ".venv"]
    # A name as short as `vm` or `root` is part of other words.
    names += [name for name in (socket.gethostname(), getpass.getuser()) if len(name) > 4]
    found = [
        (path, name)
        for path, content in built.published().items()
        for name in names
        if name.encode() in content
    ]
    assert found == []


def test_no_absolute_path_is_published(built: Any) -> None:
    absolute = re.compile(rb"(?<![\w.)*/])/(?:home|root|tmp|usr|opt|var|mnt|work|build)/[\w./-]+")
    found = {path: absolute.findall(content) for path, content in built.published().items()}
    assert {path: paths for path, paths in found.items() if paths} == {}


def test_names_of_internal_linkage_do_not_depend_on_the_directory(tmp_path: Path) -> None:
    source = """
        namespace { __device__ int counter; }
        extern "C" __global__ void count(int *out) { *out = atomicAdd(&counter, 1); }
    """
    images = []
    for name in ("first", "second"):
        work = tmp_path / name
        work.mkdir()
        (work / "kernel.cu").write_text(source)
        compile_device(
            work=work, source="kernel.cu", output="kernel.cubin", arch="sm_90a", shared_bytes=0
        )
        images.append((work / "kernel.cubin").read_bytes())
    assert b"_00000000_" in images[0]
    assert images[0] == images[1]
