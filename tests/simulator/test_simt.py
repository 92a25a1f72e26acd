"""SIMT vector functions: collectives, barriers, their misuse, atomics, random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def simt(compile_file: Any) -> Any:
    return compile_file("simt.asc")


@pytest.fixture(scope="module")
def cross_core(compile_file: Any) -> Any:
    return compile_file("cross_core.asc")


def test_warp_collectives_combine_32_lanes(simt: Any) -> None:
    x = np.random.default_rng(1).integers(-50, 50, 64).astype(np.float32)
    y = np.random.default_rng(2).integers(-50, 50, 64).astype(np.int32)
    out, out_int = np.zeros((3, 64), np.float32), np.zeros((4, 64), np.int32)
    simt.run("warp", x, y, out, out_int)
    warps = x.reshape(2, 32)
    for row, expected in zip(out, (warps.sum(1), warps.max(1), warps.min(1)), strict=True):
        assert (row == np.repeat(expected, 32)).all()
    assert (out_int[0] == y[np.arange(64) ^ 5]).all()
    assert (out_int[1] == np.repeat(y.reshape(2, 32).sum(1), 32)).all()
    assert (
        out_int[2] == np.repeat(y.view(np.uint32).reshape(2, 32).max(1), 32).view(np.int32)
    ).all()
    votes = ((y.reshape(2, 32) > 0) << np.arange(32, dtype=np.uint64)).sum(1).astype(np.uint32)
    assert (out_int[3].view(np.uint32) == np.repeat(votes, 32)).all()


def test_block_reductions_of_tilelang_agree_with_numpy(simt: Any) -> None:
    x = np.random.default_rng(3).integers(-50, 50, 256).astype(np.float32)
    out = np.zeros((3, 256), np.float32)
    simt.run("all_reduce", x, out)
    assert (out[0] == x.sum()).all()
    assert (out[1] == np.repeat(x.reshape(16, 16).max(1), 16)).all()
    assert (out[2] == np.tile(x.reshape(64, 4).min(0), 64)).all()


def test_a_barrier_orders_all_threads(simt: Any) -> None:
    x = np.arange(128, dtype=np.int32)
    simt.run("reverse", x)
    assert (x == np.arange(128)[::-1]).all()


@pytest.mark.usefixtures("each_mode")
def test_simt_stores_count_as_written(simt: Any) -> None:
    out = np.zeros(64, np.int32)
    simt.run("fill_then_store", out)
    assert (out == -1).all()


def test_a_simt_store_races_with_dma(simt: Any, simulator: Any) -> None:
    simulator.set_race_detection(True)
    text = simt.error_of("fill_without_wait", np.zeros(64, np.int32))
    assert "PIPE_MTE3 reads while PIPE_V may still write it" in text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "half_barrier",
            "asc_syncthreads: 16 of 64 threads wait and the others have returned, must be reached "
            "by all",
        ),
        (
            "two_barriers",
            "threads 0 and 16 wait at different barriers (lines 72 and 74), must reach the "
            "same one",
        ),
        (
            "two_collectives",
            "lanes 0 and 8 of a warp wait at different collectives (lines 82 and 84), must reach "
            "the same one",
        ),
        ("lonely_shuffle", "asc_shfl_xor: lane 0 reads lane 4, must take part in the shuffle"),
        ("barrier_outside", "asc_syncthreads outside of a simt vector function, must be inside"),
        ("assertion_in_thread", "device assertion is false"),
    ],
)
def test_misuse_is_an_error(simt: Any, name: str, text: str) -> None:
    x = np.zeros(64, np.int32)
    for _ in range(20):  # fibers are abandoned each time
        assert text in simt.error_of(name, x)
    simt.run("fill_then_store", x)
    assert (x == -1).all()


def test_atomics_add_up_over_blocks(simt: Any) -> None:
    counter, total = np.zeros(1, np.int64), np.zeros(1, np.float32)
    largest = np.full(1, -1, np.int32)
    simt.run("count", counter, total, largest, blocks=50)
    assert (counter[0], total[0], largest[0]) == (3200, 1600, 3199)


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> list[int]:
    """Philox 4x32-10 as in the paper."""
    c, k, mask = list(counter), list(key), 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & mask, (p0 >> 32) ^ c[3] ^ k[1], p0 & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def test_philox_reproduces_the_published_vectors() -> None:
    assert philox((0, 0, 0, 0), (0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert philox((ones,) * 4, (ones,) * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_random_numbers_follow_seed_thread_and_offset(simt: Any) -> None:
    seed, offset = 0x123456789ABCDEF0, 12
    bits = np.zeros((40, 6), np.uint32)
    uniform, normal = np.zeros(40, np.float32), np.zeros(40, np.float32)
    simt.run("random_numbers", bits, uniform, normal, seed, offset)
    key = (seed & 0xFFFFFFFF, seed >> 32)
    for thread in (0, 1, 39):
        draws = [word for i in range(3) for word in philox((offset // 4 + i, 0, thread, 0), key)]
        assert bits[thread].tolist() == draws[:6]
        scaled = np.array(draws[6:9], np.uint32).astype(np.float32) * np.float32(2**-32)
        scaled += np.float32(2**-33)
        assert uniform[thread] == scaled[0]
        radius = np.sqrt(-2 * np.log(np.float64(scaled[1])))
        expected = radius * np.sin(2 * np.pi * np.float64(scaled[2]))
        assert abs(normal[thread] - expected) < 2e-6


def test_blocks_meet_at_the_cross_core_barrier(cross_core: Any) -> None:
    blocks, rounds = 48, 5
    x, out = np.zeros(blocks, np.int32), np.zeros((blocks, rounds), np.int32)
    cross_core.run("exchange", x, out, rounds, -1, blocks=blocks)
    assert (out == np.arange(1, rounds + 1)).all()


def test_a_block_that_never_arrives_is_an_error(cross_core: Any) -> None:
    x, out = np.zeros(8, np.int32), np.zeros(8, np.int32)
    text = cross_core.error_of("exchange", x, out, 1, 2, blocks=8)
    assert "7 of 8 blocks have arrived at flag 3 and no other can, must be reached by every" in text


def test_a_failing_block_releases_those_that_wait(cross_core: Any) -> None:
    for _ in range(20):
        text = cross_core.error_of("fail_while_others_wait", np.zeros(1, np.int32), blocks=32)
        assert text.startswith("fail_while_others_wait: block 5: line ")
