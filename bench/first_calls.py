"""One fresh process of ``cold_start``: the first call of each case, timed phase by phase.

python bench/first_calls.py LIBRARY NUM_TOKENS '[[OPERATOR, {PARAMETER: VALUE}], ...]'

Imports neither library nor what imports one, such as ``measure``, before its clock starts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

TOTAL = "all, after torch"
BEFORE = "torch, context and inputs"

Run = dict[str, float]


def first_calls(library_name: str, num_tokens: int, wanted: Sequence[tuple[str, Any]]) -> Run:
    """Call each case once in this process, which has imported nothing; return seconds by phase."""
    started = time.perf_counter()
    import torch

    from cases import case_of

    cases = [case_of(operator, parameters) for operator, parameters in wanted]
    calls = [(case, _call(case, library_name)) for case in cases]
    inputs = [case.inputs(num_tokens, "cuda") for case in cases]
    torch.cuda.synchronize()
    begin = time.perf_counter()
    library = __import__(library_name)
    spent = {BEFORE: begin - started, "import": time.perf_counter() - begin}
    for (case, call), tensors in zip(calls, inputs, strict=True):
        before = time.perf_counter()
        call(library, tensors)
        torch.cuda.synchronize()
        spent[case.name] = time.perf_counter() - before
    spent[TOTAL] = time.perf_counter() - begin
    return spent


def _call(case: Any, library_name: str) -> Callable[[Any, Any], Any]:
    call: Callable[[Any, Any], Any] = (
        case.peer if library_name == "tile_kernels" else case.allocating
    )
    return call


if __name__ == "__main__":
    print(json.dumps(first_calls(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))))
