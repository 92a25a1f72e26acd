"""What a case is: one operator at one shape, as every benchmark takes it.

Nothing here imports tilewheel or the peer: both are handed to a case, so that a cold start can
make its inputs before either is there, and no call pays for an import statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[Any, Any], Any]
"""Takes a library and one set of inputs."""

ANY = "any"

E4M3_MAX = 448.0
FORMAT = {"float8_e4m3fn": "e4m3", "int8": "e2m1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An operator at one shape.

    Args:
        name: of the case, unique.
        operator: the operator whose artifact runs.
        parameters: the compile-time values that a call asks for, by name.
        inputs: takes the number of tokens and a device; makes one set of inputs, and the outputs
            where the public function takes them. Plain torch.
        allocating: calls the public function of tilewheel.
        preallocated: the same with outputs given or in place, None where it always allocates.
        peer: calls the peer's function, None where it has none.
        eager: the same result, short of ties and the last bit, in operators of torch; None where
            torch has none. It is what one would write without either library.
        bytes: takes the number of tokens; what must move.
    """

    name: str
    operator: str
    parameters: tuple[tuple[str, int | str], ...]
    inputs: Callable[[int, str], Any]
    allocating: Call
    preallocated: Call | None = None
    peer: Call | None = None
    eager: Callable[[Any], Any] | None = None
    bytes: Callable[[int], int]

    @property
    def ours(self) -> Call:
        """The call whose kernel is timed: the one that allocates least."""
        return self.preallocated or self.allocating


def tensors_of(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested tuples, in order."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, tuple):
        for value in values:
            yield from tensors_of(value)


def bfloat16(*shape: int, device: str) -> torch.Tensor:
    """Return standard normal numbers in bfloat16."""
    return torch.randn(shape, device=device).to(torch.bfloat16)
