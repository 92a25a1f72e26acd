"""Fills the peer's compilation cache on every core, so that no benchmark waits for its compiler.

TILELANG_CACHE_DIR=DIRECTORY python bench/warm_peer.py [--only NAME] [--tokens 1,64,4096]
    [--profile NAME] [--jobs N]

Calls what the peer has of every measured case once at each number of tokens: what kernel_time,
host_time and cold_start call. They find it where the same TILELANG_CACHE_DIR is set.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache

import torch

import cold_start
import host_time
import measure
from cases import CASES, HOST_CASES, Case, case_of

TOKENS = (1, 64, 4096, 16384)


@cache
def cases_of(profile: str) -> dict[str, Case]:
    """Return by name each case that the peer has."""
    of_profile = [case_of(*variant) for variant in cold_start.wanted_of(profile)]
    cases = (*CASES, *HOST_CASES, *of_profile)
    return {case.name: case for case in cases if case.peer is not None}


def warm(profile: str, name: str, tokens: tuple[int, ...]) -> str:
    """Call the peer's function of a case in this process and return what to print of it."""
    case, library = cases_of(profile)[name], measure.peer()
    assert case.peer is not None
    begin = time.perf_counter()
    try:
        for num_tokens in tokens:
            case.peer(library, case.inputs(num_tokens, "cuda"))
            torch.cuda.synchronize()
    except Exception as error:
        return f"failed: {measure.short(error)}"
    finally:
        # The card is shared by all of these processes.
        torch.cuda.empty_cache()
    return f"{time.perf_counter() - begin:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--profile", default=cold_start.PROFILE)
    parser.add_argument("--jobs", type=int, default=min(16, os.cpu_count() or 1))
    options = parser.parse_args()
    if not measure.has_peer():
        raise SystemExit("warm_peer: finds no tile_kernels here, must be on PYTHONPATH")
    tokens = {*map(int, options.tokens.split(",")), host_time.NUM_TOKENS, cold_start.NUM_TOKENS}
    names = [name for name in cases_of(options.profile) if options.only in name]
    begin = time.monotonic()
    # Forked processes could not use CUDA.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        done = {
            pool.submit(warm, options.profile, name, tuple(sorted(tokens))): name for name in names
        }
        for future in as_completed(done):
            print(f"{done[future]:48} {future.result()}", flush=True)
    print(f"warmed {len(names)} cases in {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
