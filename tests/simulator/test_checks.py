"""Violations of the execution model: each is an error of the launch that says where and what."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def flags(compile_file: Any) -> Any:
    return compile_file("protocol.asc")


@pytest.fixture(scope="module")
def memory(compile_file: Any) -> Any:
    return compile_file("memory.asc")


ONES = np.ones(64, np.float32)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "double_set",
            "asc_sync_notify(PIPE_V, PIPE_MTE2, 1): flag is already set (line 6), must be waited "
            "for before it is set again",
        ),
        (
            "wait_on_unset",
            "asc_sync_wait(PIPE_V, PIPE_MTE2, 0): flag is not set, must be set by an earlier "
            "asc_sync_notify",
        ),
        (
            "left_set",
            "asc_sync_notify(PIPE_MTE2, PIPE_V, 3): flag is still set when the kernel ends, must "
            "be waited for",
        ),
        (
            "bad_event",
            "asc_sync_notify(PIPE_MTE2, PIPE_V, 8): event id is 8, must be 0 to 7",
        ),
        (
            "one_pipe",
            "asc_sync_notify(PIPE_V, PIPE_V, 0): names the pipes 1 and 1, must be two "
            "different pipes",
        ),
        (
            "lock_twice",
            "asc_lock(PIPE_MTE2, 2): buffer is held by PIPE_V (line 24), must be unlocked before",
        ),
        (
            "unlock_foreign",
            "asc_unlock(PIPE_MTE2, 2): buffer is held by PIPE_V, must be held by this pipe",
        ),
        (
            "left_locked",
            "asc_lock(PIPE_V, 2): buffer is still held when the kernel ends, must be unlocked",
        ),
        ("assertion", "device assertion is false, must hold: cond"),
    ],
)
def test_flag_and_lock_protocol(flags: Any, name: str, text: str) -> None:
    assert text in flags.error_of(name, ONES)


def test_an_error_names_kernel_block_line_and_statement(flags: Any) -> None:
    assert flags.error_of("double_set", ONES) == (
        "double_set: block 0: line 7: asc_sync_notify(PIPE_V, PIPE_MTE2, 1): flag is already set "
        "(line 6), must be waited for before it is set again\n"
        "    asc_sync_notify(PIPE_V, PIPE_MTE2, static_cast<event_t>(1));"
    )


@pytest.mark.parametrize(
    ("name", "offset", "text"),
    [
        (
            "load_beyond",
            993,
            "vector load of 256 bytes at ub offset 4036 (x_ub + 3972) ends at 4292, must end "
            "within 4096 bytes",
        ),
        ("load_beyond", -17, "must lie in ub"),
        (
            "store_beyond",
            1006,
            "vector store of 12 bytes at ub offset 4088 (x_ub + 4024) ends at 4100, must end "
            "within 4096 bytes",
        ),
        (
            "gather_beyond",
            2000,
            "vector load of 4 bytes at ub offset 8064 (x_ub + 8000) ends at 8068, must end within "
            "4096 bytes",
        ),
    ],
)
@pytest.mark.usefixtures("each_mode")
def test_vector_accesses_stay_within_ub(memory: Any, name: str, offset: int, text: str) -> None:
    assert text in memory.error_of(name, ONES, offset, ub_bytes=4096)


@pytest.mark.usefixtures("each_mode")
def test_a_masked_store_may_reach_beyond_ub_with_inactive_lanes(memory: Any) -> None:
    memory.run("store_beyond", ONES, 1005, ub_bytes=4096)


def test_dma_stays_within_ub_and_is_aligned(memory: Any) -> None:
    assert "dma write of 64 bytes at ub offset 4064" in memory.error_of(
        "dma_in", ONES, 4064, 64, ub_bytes=4096
    )
    assert "dma write at ub offset 4 (x_ub + 4), must be aligned to 32 bytes" in memory.error_of(
        "dma_in", ONES, 4, 64
    )
    assert "with a ub stride of 20 bytes, must be a multiple of 32" in memory.error_of(
        "dma_rows", ONES, 20
    )
    memory.run("dma_in", ONES, 4032, 64, ub_bytes=4096)


def test_dma_refuses_bytes_that_were_never_written(memory: Any) -> None:
    out = np.zeros(16, np.float32)
    memory.run("dma_out", out, 16)
    assert (out == 1).all()
    assert (
        "dma read of 64 bytes at ub offset 0 (x_ub + 0): 12 bytes from offset 52 on have no "
        "defined value, must be written before" in memory.error_of("dma_out", out, 13)
    )


def test_undefined_lanes_are_followed_through_registers(memory: Any) -> None:
    out = np.zeros(16, np.float32)
    memory.run("computed_from_undefined", out, 1)
    assert out.tolist() == [2.0] * 4 + [7.0] * 12
    assert "48 bytes from offset 272 on have no defined value" in memory.error_of(
        "computed_from_undefined", out, 0
    )


def test_plain_stores_count_as_written(memory: Any) -> None:
    out = np.zeros(16, np.float32)
    memory.run("scalar_store", out, 0)
    assert (out == 2).all()


def test_plain_stores_behind_ub_are_noticed(memory: Any) -> None:
    text = memory.error_of("scalar_store", np.zeros(16, np.float32), 4, ub_bytes=64)
    assert "scalar or simt code has written ub offset 64, must stay within 64 bytes" in text


def test_the_rest_of_a_short_row_is_undefined_after_a_load(memory: Any) -> None:
    x, y = np.arange(5, dtype=np.float32), np.zeros(16, np.float32)
    assert "12 bytes from offset 20 on have no defined value" in memory.error_of("short_row", x, y)


def test_padding_is_filled_in_elements(memory: Any) -> None:
    x, y = np.arange(10, dtype=np.float32), np.zeros(20, np.float32)
    memory.run("padded_row", x, y)
    assert y.tolist() == [0, 1, 2, 3, 4, 5, 5, 5, 0, 0, 5, 6, 7, 8, 9, 5, 5, 5, 0, 0]


def test_atomic_stores_accumulate_over_blocks(memory: Any) -> None:
    x = np.ones(16, np.float32)
    y = np.zeros(16, np.uint16)
    memory.run("atomic_sum", x, y, blocks=100)
    assert (x == 201).all()
    assert (y == 0x42C8).all()  # 100 in bf16


def test_dma_stays_within_registered_tensors(memory: Any, simulator: Any) -> None:
    x, out = np.ones(16, np.float32), np.zeros(16, np.float32)
    simulator.set_regions((x, False), (out, True))
    memory.run("dma_in", x, 0, 64)
    memory.run("dma_out", out, 16)
    assert "of tensor 0, must lie within 64 bytes" in memory.error_of("dma_in", x[1:], 0, 64)
    assert "dma write of 64 bytes to tensor 0, must be an output" in memory.error_of(
        "dma_out", x, 16
    )
    simulator.set_regions((x, False), (out, True), (x, True))  # in place
    memory.run("dma_out", x, 16)
    simulator.set_regions((out, True))
    other = np.ones(1024, np.float32)
    assert "must lie" in memory.error_of("dma_in", other, 0, 64)


def test_scalar_accesses_and_prints_of_tilelangs_headers(
    memory: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    x, y = np.array([1.5, 0], np.float32), np.array([-3, 0], np.int64)
    memory.run("copy_scalars", x, y)
    ctypes.CDLL(None).fflush(None)
    assert x.tolist() == [1.5, 1.5]
    assert y.tolist() == [-3, -3]
    assert "BlockIdx=0: buffer=x, index=1, dtype=float32 value=1.5" in capfd.readouterr().out


def test_a_launch_reports_what_it_moved(memory: Any, simulator: Any) -> None:
    memory.run("dma_in", ONES, 512, 64, blocks=3)
    statistics = simulator.statistics()
    assert statistics.ub_high_water_bytes == 576
    assert statistics.dma_bytes == 3 * 64


@pytest.mark.usefixtures("each_mode")
def test_violations_leave_the_process_usable(memory: Any, flags: Any) -> None:
    out = np.zeros(16, np.float32)
    for _ in range(50):
        memory.error_of("load_beyond", ONES, 993, ub_bytes=4096, blocks=4)
        flags.error_of("double_set", ONES, blocks=4)
        memory.run("dma_out", out, 16)
    assert (out == 1).all()
