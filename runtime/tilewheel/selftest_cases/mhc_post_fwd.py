"""Self-test of mhc_post_fwd: narrow and wide streams, and in place."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tilewheel.key import Value
from tilewheel.reference import mhc
from tilewheel.selftest_cases import Case
from tilewheel.selftest_cases.mixes import channels, post_inputs


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    for num_tokens, hidden, in_place in (
        (0, 64, False),
        (1, 64, False),
        (5, 320, True),
        (37, 1088, False),
        (3, 7168, True),
    ):
        inputs = post_inputs(num_tokens, hidden)
        x, residual, post_mix, comb_mix = (each.to(device, copy=True) for each in inputs)
        yield Case(
            name=f"num_tokens={num_tokens} hidden={hidden} in_place={in_place}",
            arguments=(
                x,
                residual,
                post_mix,
                comb_mix,
                residual if in_place else torch.empty_like(residual),
            ),
            expected={4: mhc.post_fwd(*inputs)},
            difference=channels,
        )
