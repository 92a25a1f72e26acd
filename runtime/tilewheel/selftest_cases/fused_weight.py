"""Self-test of fused_weight."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tilewheel.key import Value
from tilewheel.reference import engram
from tilewheel.selftest_cases import Case
from tilewheel.selftest_cases.engram_inputs import hidden_sizes


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    for hidden in hidden_sizes(parameters):
        generator = torch.Generator().manual_seed(hidden)
        first, second = torch.randn((2, 4, hidden), generator=generator).bfloat16()
        yield Case(
            name=f"hidden={hidden}",
            arguments=(first.to(device), second.to(device), torch.empty(4, hidden, device=device)),
            expected={2: engram.fused_weight(first, second)},
        )
