"""From a tensor's device and shape to the function to launch, remembered for the next call."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tilewheel import discovery, loader
from tilewheel.backend import active
from tilewheel.device import resolve, simulated
from tilewheel.errors import NoArtifactError
from tilewheel.key import Value, sort_parameters
from tilewheel.select import Request, select

bound: dict[tuple[object, ...], Callable[..., Any]] = {}
"""Functions by (operator, torch device, parameter values, selected backend).

Operators look here first; a miss goes through ``bind``. It holds nothing that cannot be found
again, so that any thread may fill it and ``refresh`` may empty it.
"""


def bind(operator: str, device: Any, **parameters: Value) -> Callable[..., Any] | None:
    """Return the function for a tensor on ``device``, or None where the reference is to run.

    Raises:
        NoArtifactError: no installed artifact fits; the message gives the reasons.
        ValueError: no backend takes tensors of this device.
    """
    selected = active()
    key = (operator, device, *parameters.values(), selected)
    known = bound.get(key)
    if known is not None:
        return known
    if device.type == "cpu" and selected is None:
        return None
    if device.type == "cpu":
        described = simulated()
    elif device.type in ("cuda", "npu"):
        described = resolve(device)
    else:
        raise ValueError(f"{operator}: tensors are on {device}, must be on cpu, cuda or npu")
    request = Request(operator=operator, parameters=sort_parameters(parameters))
    selection = select(discovery.catalog(), request, described)
    if selection.choice is None:
        raise NoArtifactError(str(selection))
    function = loader.load(selection.choice, described).function
    bound[key] = function
    return function


def refresh() -> None:
    """Read installed packages and ``TILEWHEEL_ARTIFACTS`` again at the next call."""
    discovery.refresh()
    loader.clear()
    bound.clear()


os.register_at_fork(after_in_child=bound.clear)
