"""How a result differs from what it must be, in words; empty where it does not."""

from __future__ import annotations

from typing import Any


def bits(actual: Any, expected: Any) -> str:
    """Compare two tensors bit for bit, except that every NaN equals every NaN."""
    import torch

    problem = _metadata(actual, expected)
    if problem:
        return problem
    actual = actual.detach().cpu().contiguous()
    expected = expected.detach().cpu().contiguous()
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    same_size = integers[actual.element_size()]
    wrong = actual.view(same_size) != expected.view(same_size)
    if actual.is_floating_point():
        wrong &= ~(actual.float().isnan() & expected.float().isnan())
    places = wrong.nonzero()
    if not len(places):
        return ""
    place = tuple(places[0].tolist())
    shown = f"is {actual[place].item()}, must be {expected[place].item()}"
    if actual.is_floating_point():
        have, want = (int(t.view(same_size)[place].item()) for t in (actual, expected))
        mask = (1 << 8 * actual.element_size()) - 1
        shown += f" (bits {have & mask:#x}, must be {want & mask:#x})"
    return f"{len(places)} of {expected.numel()} differ; at {place} {shown}"


def relative_square_error(limit: float) -> Any:
    """Return a comparison: sum of squared differences over sum of squares is at most ``limit``."""

    def compare(actual: Any, expected: Any) -> str:
        import torch

        problem = _metadata(actual, expected)
        if problem:
            return problem
        x, y = actual.detach().cpu().double(), expected.detach().cpu().double()
        total = float((x * x + y * y).sum())
        error = float(((x - y) ** 2).sum()) / total if total else 0.0
        if not torch.isfinite(x).all() or error > limit:
            return f"relative square error is {error:.3g}, must be at most {limit:g}"
        return ""

    return compare


def within(absolute: float, relative: float = 0.0) -> Any:
    """Return a comparison: no element differs by more than absolute + relative * |expected|."""

    def compare(actual: Any, expected: Any) -> str:
        problem = _metadata(actual, expected)
        if problem:
            return problem
        x, y = actual.detach().cpu().double(), expected.detach().cpu().double()
        places = (~((x - y).abs() <= absolute + relative * y.abs())).nonzero()
        if not len(places):
            return ""
        place = tuple(places[0].tolist())
        return (
            f"{len(places)} of {expected.numel()} differ by more than {absolute:g} + {relative:g} "
            f"of it; at {place} is {x[place].item()}, must be {y[place].item()}"
        )

    return compare


def _metadata(actual: Any, expected: Any) -> str:
    if actual.dtype != expected.dtype:
        return f"dtype is {actual.dtype}, must be {expected.dtype}"
    if actual.shape != expected.shape:
        return f"shape is {tuple(actual.shape)}, must be {tuple(expected.shape)}"
    return ""
