"""Self-test of randn: less than a tile, a partial one, several, and a high place of a sequence."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tilewheel import compare
from tilewheel.key import Value
from tilewheel.reference import rand
from tilewheel.selftest_cases import Case

# The contract's: 5e-6 for what is computed in float32, one step for a number rounded to bfloat16.
_DIFFERENCE = {
    "float32": compare.within(5e-6),
    "bfloat16": compare.within(5e-6, 2.0**-7),
}


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    name = str(parameters["dtype"])
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    seed, sequence = 0x0123456789ABCDEF, 0x3FEDCBA987654321
    for num_elements, offset in ((0, 0), (1, 0), (8195, 4), (100_001, 2**40)):
        out = torch.full((num_elements,), torch.nan, dtype=dtype, device=device)
        yield Case(
            name=f"num_elements={num_elements} offset={offset}",
            arguments=(out, seed, sequence, offset),
            expected={
                0: rand.randn(
                    num_elements, dtype=dtype, seed=seed, sequence=sequence, offset=offset
                )
            },
            difference=_DIFFERENCE[name],
        )
