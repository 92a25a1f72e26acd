"""The Ascend backend without CANN: where its tools are looked for, commands, limits, arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilewheel.manifest import Resources
from tilewheel_build import ascend
from tilewheel_build.ascend import (
    UB_LIMIT_BYTES,
    UB_LIMIT_SIMT_BYTES,
    argument_layout,
    check_lowered,
    compile_commands,
    find_bisheng,
    find_linker,
)
from tilewheel_build.errors import CompilationError, ToolchainError
from tilewheel_build.lower import Lowered, LoweredScalar

HINT = (
    "\nhint: source CANN's set_env.sh or set BISHENG_HOME and ASCEND_HOME_PATH; or build with "
    "--source-only and finish on a machine with CANN (python -m tilewheel_build finish DIR)"
)


def tool(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def lowered(*dtypes: str, **changes: Any) -> Lowered:
    values: dict[str, Any] = {
        "source": "",
        "kernel": "k_kernel",
        "tensors": (),
        "scalars": (),
        "parameters": tuple(
            LoweredScalar(name=f"p{index}", dtype=dtype) for index, dtype in enumerate(dtypes)
        ),
        "grid": ("1", "1", "1"),
        "block": (1, 1, 1),
        "dynamic_shared_bytes": 0,
        "pdl": False,
        "warnings": (),
    }
    return Lowered(**{**values, **changes})


def test_target_is_named_as_tilelang_names_it() -> None:
    assert ascend.tvm_target("dav_3510") == {"kind": "ascend", "arch": "dav-3510"}


def test_commands_compile_to_a_relocatable_and_link_it_with_relative_names() -> None:
    assert compile_commands(
        bisheng=Path("/cann/bin/bisheng"),
        linker=Path("/cann/bin/ld.lld"),
        arch="dav_3510",
        include=Path("/pip/tilelang/src"),
        source="kernel.asc",
        output="kernel.aibin",
    ) == (
        [
            "/cann/bin/bisheng",
            "-O2",
            "-fPIC",
            "-std=c++20",
            "-mllvm",
            "-cce-aicore-dcpreload-args=false",
            "--npu-arch=dav-3510",
            "-I/pip/tilelang/src",
            "--cce-aicore-only",
            "kernel.asc",
            "-o",
            "kernel.rel.o",
        ],
        [
            "/cann/bin/ld.lld",
            "-m",
            "aicorelinux",
            "-Ttext",
            "0",
            "--no-mmap-output-file",
            "kernel.rel.o",
            "-o",
            "kernel.aibin",
        ],
    )


def test_compiler_and_linker_run_in_the_work_directory_with_the_time_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def run_tool(command: list[str], *, cwd: Path, timeout_s: float) -> str:
        ran.append((command[0], cwd, timeout_s))
        return ""

    for name in ("bisheng", "ld.lld"):
        tool(tmp_path / "bin" / name)
    monkeypatch.setattr(ascend, "run_tool", run_tool)
    monkeypatch.setattr(ascend, "tilelang_source", lambda: tmp_path)
    monkeypatch.setenv("BISHENG_HOME", str(tmp_path))
    work = tmp_path / "work"
    ascend.compile_device(
        work=work, source="kernel.asc", output="kernel.aibin", arch="dav_3510", timeout_s=7
    )
    assert ran == [
        (f"{tmp_path}/bin/bisheng", work, 7),
        (f"{tmp_path}/bin/ld.lld", work, 7),
    ]


def test_bisheng_home_comes_before_path(tmp_path: Path) -> None:
    on_path = tool(tmp_path / "path" / "bisheng")
    environment = {"BISHENG_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_bisheng(environment) == on_path
    at_home = tool(tmp_path / "home" / "bin" / "bisheng")
    assert find_bisheng(environment) == at_home


def test_file_that_cannot_be_executed_is_no_compiler(tmp_path: Path) -> None:
    tool(tmp_path / "bin" / "bisheng").chmod(0o644)
    with pytest.raises(ToolchainError):
        find_bisheng({"BISHENG_HOME": str(tmp_path), "PATH": str(tmp_path / "bin")})


def test_linker_is_looked_for_in_canns_directories_then_beside_bisheng_then_on_path(
    tmp_path: Path,
) -> None:
    # Each is found only where all that come before it lack the tool: the last one first.
    order = [
        "home/bin/ld.lld",
        "home/ld.lld",
        "ascend/bin/ld.lld",
        "ascend/ld.lld",
        "toolkit/bin/ld.lld",
        "toolkit/ld.lld",
        "compiler/ld.lld",
        "system/ld.lld",
    ]
    tool(tmp_path / "compiler" / "bisheng")
    environment = {
        "BISHENG_HOME": str(tmp_path / "home"),
        "ASCEND_HOME_PATH": str(tmp_path / "ascend"),
        "ASCEND_TOOLKIT_HOME": str(tmp_path / "toolkit"),
        "PATH": f"{tmp_path}/system:{tmp_path}/compiler",
    }
    for name in reversed(order):
        expected = tool(tmp_path / name)
        assert find_linker(environment) == expected


def test_missing_bisheng_is_named_with_places_release_and_the_way_without_it() -> None:
    with pytest.raises(ToolchainError) as caught:
        find_bisheng({"BISHENG_HOME": "/cann", "PATH": "/none"})
    assert str(caught.value) == (
        "bisheng: is not installed (looked in /cann/bin/bisheng, PATH), must be the one of "
        "CANN 9.1 or newer" + HINT
    )


def test_missing_linker_is_named_with_every_place() -> None:
    with pytest.raises(ToolchainError) as caught:
        find_linker({"ASCEND_HOME_PATH": "/ascend", "ASCEND_TOOLKIT_HOME": "/kit", "PATH": ""})
    assert str(caught.value) == (
        "ld.lld: is not installed (looked in /ascend/bin/ld.lld, /ascend/ld.lld, /kit/bin/ld.lld, "
        "/kit/ld.lld, PATH), must be the one of CANN 9.1 or newer" + HINT
    )


def test_version_is_the_first_line_that_bisheng_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bisheng", "ld.lld"):
        tool(tmp_path / "bin" / name)
    (tmp_path / "bin" / "bisheng").write_text("#!/bin/sh\necho bisheng 9.1\necho InstalledDir\n")
    monkeypatch.setenv("BISHENG_HOME", str(tmp_path))
    assert ascend.tool_versions() == (("bisheng", "bisheng 9.1"),)


def test_bisheng_that_does_not_run_is_a_toolchain_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bisheng", "ld.lld"):
        tool(tmp_path / "bin" / name)
    path = tmp_path / "bin" / "bisheng"
    path.write_text("#!/bin/sh\necho libz.so.1: cannot open >&2\nexit 127\n")
    monkeypatch.setenv("BISHENG_HOME", str(tmp_path))
    with pytest.raises(ToolchainError) as caught:
        ascend.tool_versions()
    assert str(caught.value) == (
        "bisheng: does not run, must tell its version\n"
        f"{path} --version\n"
        "ended with 127:\n"
        "libz.so.1: cannot open"
    )


def test_missing_linker_is_found_out_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path / "bin" / "bisheng")
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BISHENG_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolchainError, match=r"^ld\.lld: is not installed"):
        ascend.tool_versions()


def test_unified_buffer_holds_248_kib_and_216_kib_beside_simt_code() -> None:
    assert UB_LIMIT_BYTES == 253952
    assert UB_LIMIT_SIMT_BYTES == 221184


@pytest.mark.parametrize(
    ("source", "limit"),
    [("simd_inst::vadd(a, b);", 253952), ("asc_vf_call<k_simt_vf_0>(dim3(128));", 221184)],
)
def test_kernel_may_fill_the_unified_buffer_and_not_exceed_it(source: str, limit: int) -> None:
    fits = lowered(source=source, dynamic_shared_bytes=limit)
    assert check_lowered(fits) == Resources(dropped_buffer_versions=0)
    with pytest.raises(CompilationError) as caught:
        check_lowered(lowered(source=source, dynamic_shared_bytes=limit + 1))
    assert str(caught.value) == (f"unified buffer: is {limit + 1} bytes, must be at most {limit}")


def test_dropped_buffer_versions_are_counted_by_their_warnings() -> None:
    dropped = (
        'Warning: Ascend AutoSchedule did not enable multi-buffering for buffer "{}" although '
        "T.annotate_buffer_versions requested 2 versions."
    )
    kernel = lowered(
        warnings=(
            dropped.format("x_ub"),
            "Warning: flag-id high-water mark 9 > 8",
            dropped.format("y_ub"),
        )
    )
    assert check_lowered(kernel).dropped_buffer_versions == 2


@pytest.mark.parametrize(
    ("dtypes", "offsets", "size_bytes"),
    [
        ((), (), 8),
        (("handle", "handle"), (0, 8), 16),
        (("int32",), (0,), 8),
        (("int32", "int64"), (0, 8), 16),
        (("int32", "float64", "int32"), (0, 8, 16), 24),
        (("bool", "bool", "float32"), (0, 4, 8), 16),
        # Each at a multiple of four at least, however small it is.
        (("int8", "int8", "int16", "uint8", "uint16"), (0, 4, 8, 12, 16), 24),
        (("handle", "int32", "uint32", "bool", "uint64"), (0, 8, 12, 16, 24), 32),
    ],
)
def test_arguments_are_packed_as_acl_takes_them(
    dtypes: tuple[str, ...], offsets: tuple[int, ...], size_bytes: int
) -> None:
    assert argument_layout(lowered(*dtypes)) == (offsets, size_bytes)


def test_simulator_unpacks_what_the_launcher_packs() -> None:
    from tilewheel_build.simulator import rewrite_source

    types = {
        "handle": "__gm__ float*",
        "int8": "int8_t",
        "bool": "bool",
        "int64": "int64_t",
        "uint16": "uint16_t",
        "float32": "float",
    }
    dtypes = ("handle", "int8", "int64", "bool", "uint16", "float32", "int8")
    parameters = ", ".join(f"{types[dtype]} p{index}" for index, dtype in enumerate(dtypes))
    source = f'extern "C" __global__ __vector__ void k({parameters}) {{\n}}\n'
    (kernel,) = rewrite_source(source).kernels
    unpacked = tuple(parameter.offset for parameter in kernel.parameters)
    assert (unpacked, kernel.argument_bytes) == argument_layout(lowered(*dtypes))
