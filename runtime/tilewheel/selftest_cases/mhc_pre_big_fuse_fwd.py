"""Self-test of mhc_pre_big_fuse_fwd: split counts, eps values, padded partials."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tilewheel.key import Value
from tilewheel.reference import mhc
from tilewheel.selftest_cases import Case
from tilewheel.selftest_cases.mixes import channels, mixes, normalised_channels, pre_inputs
from tilewheel.selftest_cases.quantised import place


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    has_norm = bool(parameters["output_norm"])
    fixed = parameters["hidden"]
    # num_splits, num_tokens, hidden where it is any, floats between tokens, eps, repeat
    for num_splits, num_tokens, hidden, row, eps, repeat in (
        (1, 0, 64, 24, 1e-6, 20),
        (1, 5, 320, 24, 1e-6, 20),
        (3, 37, 1088, 32, 1e-20, 20),
        (21, 3, 4096, 24, 1e-5, 1),
        (128, 2, 7168, 24, 1e-6, 20),
    ):
        if isinstance(fixed, int):
            hidden = fixed
        inputs = pre_inputs(num_splits, num_tokens, hidden, row=row)
        numbers = (eps, eps, eps, 2.0, repeat)
        weight = torch.linspace(-2.0, 2.0, hidden).to(torch.bfloat16) if has_norm else None
        expected = mhc.pre_big_fuse_fwd(*inputs, *numbers, norm_weight=weight, norm_eps=eps)
        outputs = [torch.empty_like(result, device=device) for result in expected]
        yield Case(
            name=f"num_splits={num_splits} num_tokens={num_tokens} hidden={hidden} eps={eps:g}",
            arguments=(
                *(place(each, device) for each in inputs),
                None if weight is None else weight.to(device),
                *outputs,
                *numbers,
                eps,
            ),
            expected={6: expected[0], 7: expected[1], 8: expected[2]},
            difference=_normalised_difference if has_norm else _difference,
        )


def _difference(actual: Any, expected: Any) -> str:
    if expected.dtype is torch.float32:
        return mixes(actual, expected)
    return channels(actual, expected)


def _normalised_difference(actual: Any, expected: Any) -> str:
    if expected.dtype is torch.float32:
        return mixes(actual, expected)
    return normalised_channels(actual, expected)
