"""Rewriting a generated source: argument layout, markers, UB names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewheel_build.simulator import KernelEntry, Parameter, rewrite_source

SOURCE = Path(__file__).with_name("rewrite.asc").read_text()


def test_arguments_are_laid_out_as_acl_packs_them() -> None:
    def parameter(name: str, type_: str, offset: int, size_bytes: int) -> Parameter:
        return Parameter(name=name, type=type_, offset=offset, size_bytes=size_bytes)

    assert rewrite_source(SOURCE).kernels == (
        KernelEntry(
            name="k",
            parameters=(
                parameter("x", "void *", 0, 8),
                parameter("y", "void *", 8, 8),
                parameter("a", "int8_t", 16, 1),
                parameter("b", "int64_t", 24, 8),
                parameter("c", "bool", 32, 4),
                parameter("d", "float", 36, 4),
            ),
            argument_bytes=40,
        ),
    )


def test_statements_keep_their_lines_and_get_markers() -> None:
    lines = rewrite_source(SOURCE).text.split("\n")
    original = SOURCE.split("\n")
    assert lines[2] == original[2]
    assert lines[3] == f"::sim::at_line(4); {original[3]}"
    assert lines[4] == f"::sim::at_line(5); {original[4]}"
    assert lines[8] == original[8]
    assert lines[12:14] == original[12:14], "a statement that goes on is left alone"
    assert lines[14] == f"::sim::begin_vector_function(15); {original[14]}"
    assert lines[15:17] == original[15:17]


def test_ub_addresses_become_offsets_and_names() -> None:
    rewritten = rewrite_source(SOURCE)
    assert rewritten.ub_names == ((0, "buf_dyn_shmem"), (4096, "acc"))
    assert "acc = TILEWHEEL_SIM_UB(float, 4096);" in rewritten.text


def test_a_cross_core_barrier_needs_all_blocks() -> None:
    assert not rewrite_source(SOURCE).needs_all_blocks
    assert rewrite_source(
        SOURCE.replace("asc_init()", "asc_sync_inter_wait(PIPE_MTE3, 0)")
    ).needs_all_blocks


def test_a_source_without_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="source: has no kernel, must define"):
        rewrite_source("int x;")


def test_an_unknown_parameter_type_is_refused() -> None:
    with pytest.raises(
        ValueError, match="k: parameter d has type float3, must be a pointer or one of"
    ):
        rewrite_source(SOURCE.replace("float d", "float3 d"))
