"""The simulator's library: built with the artifacts that open it, under a name of its own."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
KEY = "shift-hidden=256-num_vec_cores=any-staged=true-ascend_sim-dav_3510"


def library_name(package: Path | None = None) -> str:
    """Return how a copy of the driver (by default this one) names the simulator's library."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from tilewheel_build import ascend_sim as s; print(s.library_name())",
        ],
        env={**os.environ, **({} if package is None else {"PYTHONPATH": str(package)})},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_finished_simulator_sources_come_with_the_library(
    ascend_built: Any, tmp_path: Path
) -> None:
    checkout = replace(ascend_built, out=tmp_path / "out", backend="ascend-sim")
    (checkout.out / "cache").mkdir(parents=True)
    # What zig compiled of the C library serves every output.
    (checkout.out / "cache" / "zig").symlink_to(ascend_built.out / "cache" / "zig")
    packed = checkout.run("build", "--source-only", "--target", "ascend-sim", "--only", KEY)
    assert packed.returncode == 0, packed.stderr
    done = checkout.run("finish", str(checkout.out / "sources" / "ascend-sim"), "--jobs", "1")
    assert done.returncode == 0, done.stderr
    published = checkout.published()
    library = library_name()
    assert sorted(published) == [
        f"dav_3510/{KEY}.asc",
        f"dav_3510/{KEY}.so",
        library,
        "manifest.json",
    ]
    built = replace(ascend_built, backend="ascend-sim").published()
    for name in (f"dav_3510/{KEY}.so", library):
        assert published[name] == built[name]


def test_another_simulator_library_has_another_name_which_artifacts_open(
    ascend_built: Any, tmp_path: Path
) -> None:
    shutil.copytree(REPOSITORY / "build" / "tilewheel_build", tmp_path / "tilewheel_build")
    (tmp_path / "tilewheel").symlink_to(REPOSITORY / "runtime" / "tilewheel")
    name = library_name()
    assert re.fullmatch(r"libtilewheel_ascend_sim-[0-9a-f]{12}\.so", name)
    assert library_name(tmp_path) == name
    changed = tmp_path / "tilewheel_build" / "simulator" / "runtime" / "acl.cc"
    changed.write_text(changed.read_text() + "// another\n")
    assert library_name(tmp_path) not in ("", name)

    simulated = replace(ascend_built, backend="ascend-sim")
    published = simulated.published()
    (soname,) = (tag.soname for tag in dynamic_tags(published[name], "DT_SONAME"))
    assert soname == name
    artifacts = [
        path for path in published if path.startswith("dav_3510/") and path.endswith(".so")
    ]
    assert artifacts
    assert all(name.encode() + b"\0" in published[path] for path in artifacts)


def dynamic_tags(content: bytes, kind: str) -> list[Any]:
    from elftools.elf.elffile import ELFFile

    tags = ELFFile(io.BytesIO(content)).get_section_by_name(".dynamic").iter_tags()
    return [tag for tag in tags if tag.entry.d_tag == kind]


def test_verify_reads_the_library_and_the_device_code_of_the_simulator(
    ascend_built: Any, tmp_path: Path
) -> None:
    from tilewheel_build.verify import verify_directory

    directory = tmp_path / "ascend-sim"
    shutil.copytree(replace(ascend_built, backend="ascend-sim").artifacts, directory)
    assert verify_directory(directory) == []

    name = library_name()
    tree = json.loads((directory / "manifest.json").read_text())
    tree["libraries"] *= 2
    tree["libraries"][1] = {**tree["libraries"][1], "path": "gone.so"}
    (directory / "manifest.json").write_text(json.dumps(tree))
    (directory / name).write_bytes((directory / name).read_bytes() + b"\0")
    assert verify_directory(directory) == [
        f"{name}: {name}: sha256 differs from the manifest's",
        "gone.so: gone.so: is missing, must be there as the manifest lists it",
    ]

    (entry,) = tree["artifacts"]
    path = directory / entry["path"]
    content = re.sub(rb"(ld-linux-[\w-]+\.so\.)\d\0", rb"\g<1>9\0", path.read_bytes())
    path.write_bytes(content)
    entry["sha256"] = hashlib.sha256(content).hexdigest()
    tree["libraries"] = []
    (directory / name).unlink()
    (directory / "manifest.json").write_text(json.dumps(tree))
    (problem,) = verify_directory(directory)
    assert problem.startswith(f"{entry['key']}: device image: needs ld-linux-")


def test_killed_build_of_the_library_leaves_nothing_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewheel_build import driver
    from tilewheel_build.driver import BACKENDS, Layout, build_libraries, local_cache

    def killed(out: Path, machine: str, zig_cache: Path) -> None:
        out.write_bytes(b"half")
        raise KeyboardInterrupt

    def compiled(out: Path, machine: str, zig_cache: Path) -> None:
        out.write_bytes(b"whole")

    layout = Layout(root=tmp_path, out=tmp_path / "out")
    simulator = BACKENDS["ascend-sim"]
    simulator = replace(simulator, library_name=lambda: "libsimulator.so")
    killing = {"ascend-sim": replace(simulator, compile_library=killed)}
    monkeypatch.setattr(driver, "BACKENDS", killing)
    with pytest.raises(KeyboardInterrupt):
        build_libraries(layout, "ascend-sim", "x86_64", local_cache(layout))
    assert not (layout.out / "cache").exists()
    working = {"ascend-sim": replace(simulator, compile_library=compiled)}
    monkeypatch.setattr(driver, "BACKENDS", working)
    (library,), found = build_libraries(layout, "ascend-sim", "x86_64", local_cache(layout))
    assert (library.path, library.size_bytes) == ("libsimulator.so", 5)
    assert found[library.path].read_bytes() == b"whole"
    assert sorted(path.name for path in layout.out.rglob("*") if path.is_file()) == [
        "entry.json",
        "libsimulator.so",
    ]
    assert not list((layout.out / "work").iterdir())
    assert build_libraries(layout, "ascend-sim", "x86_64", local_cache(layout)) == (
        (library,),
        found,
    )
