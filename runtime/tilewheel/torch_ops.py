"""Operators under ``torch.ops.tilewheel``, for tracing: torch.compile, torch.export, functorch.

``Library.define`` and ``impl`` make a thinner call than ``torch.library.custom_op``. The operator
modules define their operators here when they are imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("tilewheel", "DEF")

# Kernels read memory as the caller laid it out, so a compiler may not choose other strides.
_TAGS = (
    torch.Tag.pt2_compliant_tag,
    getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),
)
_RANDOM_TAGS = (torch.Tag.nondeterministic_seeded,)


def define(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    is_random: bool = False,
    in_vmap: Callable[..., Any] | None = None,
) -> Any:
    """Define an operator and return its overload, which callers call.

    Args:
        schema: name and signature, e.g. ``topk_gate(Tensor scores, int num_topk) -> Tensor``; what
            it writes in place is marked, ``Tensor(a!)``, and is not returned.
        run: what it does, on every device.
        fake: its result's metadata for symbolic sizes; raises what ``run`` would raise.
        is_random: whether two calls differ, so that a compiler may neither merge nor repeat them.
        in_vmap: what it does inside ``torch.vmap`` where no argument is mapped over; None runs it
            once.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(*_TAGS, *(_RANDOM_TAGS if is_random else ())))
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    if in_vmap is not None:
        _LIBRARY.impl(name, in_vmap, "FuncTorchVmapMode")
    # Without a kernel for autograd torch would mark float results as differentiable and then leave
    # the gradient empty; gradients are the business of the autograd functions built on operators.
    _LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"tilewheel::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.tilewheel, name).default


def is_traced(*arguments: object) -> bool:
    """Return whether a call with these arguments must go through its ``torch.ops`` operator.

    So it is if one is a fake or functional tensor or of another subclass, and where
    ``is_intercepted``. ``torch.nn.Parameter`` is plain data.
    """
    for argument in arguments:
        if isinstance(argument, Tensor) and type(argument) not in (Tensor, torch.nn.Parameter):
            return True
    return is_intercepted()


_interpreters = torch._C._functorch.peek_interpreter_stack
_num_modes = torch._C._len_torch_dispatch_stack


def is_intercepted() -> bool:
    """Return whether this is inside a functorch transform or a dispatch mode, for any tensor."""
    return _interpreters() is not None or _num_modes() > 0
