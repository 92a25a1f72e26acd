"""Self-test of grad_w_reduce: one part, many, and what the buffers hold already."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tilewheel.key import Value
from tilewheel.reference import engram
from tilewheel.selftest_cases import Case
from tilewheel.selftest_cases.engram_inputs import SUMMED, hidden_sizes


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    for hidden in hidden_sizes(parameters):
        for num_parts in (1, 5, 132):
            generator = torch.Generator().manual_seed(hidden + num_parts)
            weights = torch.randn((2, 4, hidden), generator=generator).bfloat16()
            partial = torch.randn((num_parts, 4, hidden), generator=generator)
            grads = torch.randn((2, 4, hidden), generator=generator)
            expected = grads.clone()
            engram.grad_w_reduce(partial, *weights, *expected)
            yield Case(
                name=f"hidden={hidden} num_parts={num_parts}",
                arguments=(
                    partial.to(device),
                    *(weight.to(device) for weight in weights),
                    *(grad.to(device) for grad in grads),
                ),
                expected={3: expected[0], 4: expected[1]},
                difference=SUMMED,
            )
