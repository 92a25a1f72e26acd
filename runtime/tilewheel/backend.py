"""Which backend takes CPU tensors: the reference, or one that is selected here."""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType

from tilewheel.errors import nearest

SELECTABLE = ("ascend-sim",)

_active: ContextVar[str | None] = ContextVar("tilewheel_backend", default=None)

active = _active.get
"""Return the selected backend's name, or None."""

# What was selected outside each ``with`` block that this thread or task is in. One ``backend``
# object may be entered by many of them.
_outer: ContextVar[tuple[str | None, ...]] = ContextVar("tilewheel_outer_backends", default=())


class backend:  # noqa: N801 - a context manager, used as a function: `with tw.backend("...")`
    """Send CPU tensors to the artifacts of a backend inside a ``with`` block.

    ``ascend-sim`` runs the Ascend kernels on the functional simulator. Tensors on a GPU or NPU
    always go to their own backend. The choice holds for the current thread or async task.

    Raises:
        ValueError: ``name`` is no backend that can take CPU tensors.
    """

    def __init__(self, name: str) -> None:
        if name not in SELECTABLE:
            known = ", ".join(nearest(str(name), SELECTABLE))
            raise ValueError(
                f"backend: is {name!r}, must be one of: {known}\n"
                "hint: move the tensor to a GPU or NPU to use its backend"
            )
        self._name = name

    def __enter__(self) -> None:
        _outer.set((*_outer.get(), _active.get()))
        _active.set(self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        outer = _outer.get()
        if outer:  # a generator may be closed in another context than the one that it began in
            _outer.set(outer[:-1])
            _active.set(outer[-1])
