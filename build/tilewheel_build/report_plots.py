"""The plots of the build report, as SVG: functions of its rows, coloured by the page's styles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from tilewheel_build.report import FailedRow, Row
from tilewheel_build.report_totals import (
    Lane,
    OperatorTotals,
    on_chip_share,
    seconds,
    size,
)

WIDE, HALF = 1200, 640
_PART_NAMES = (("lower", "s1"), ("compile", "s2"), ("link", "s3"))
_BARS_NAMED = 24
_REGISTERS_PER_BIN = 8
_MAX_REGISTERS = 256
_TIME_STEPS_S = (0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400)
# About the width of a character of the labels.
_CHARACTER = 7.2


def _svg(width: float, height: float, label: str, parts: Iterable[Markup]) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" class="{}" role="img" aria-label="{}">{}</svg>').format(
        _n(width), _n(height), "wide" if width == WIDE else "half", label, Markup("").join(parts)
    )


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> Markup:
    inside = Markup("<title>{}</title>").format(title) if title else Markup("")
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}">{}</rect>').format(
        _n(x), _n(y), _n(max(0.0, width)), _n(max(0.0, height)), kind, inside
    )


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}" class="{}">{}</text>').format(
        _n(x), _n(y), anchor, kind, text
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> Markup:
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>').format(
        _n(x1), _n(y1), _n(x2), _n(y2), kind
    )


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def ticks(top: float, count: int = 4) -> list[float]:
    """Return round numbers from 0 up to at least ``top``, about ``count`` steps of them."""
    if top < 1e-9:
        return [0.0, 1.0]
    raw = top / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw * 0.999999)
    return [index * step for index in range(math.ceil(top / step - 1e-9) + 1)]


def time_ticks(top_s: float) -> list[float]:
    """Return round times from 0 up to at least ``top_s``."""
    step = next((step for step in _TIME_STEPS_S if top_s / step <= 12), top_s / 12)
    return [index * step for index in range(math.ceil(top_s / step - 1e-9) + 1)]


def _shortened(text: str, width: float) -> str:
    """Return a text that fits, without its middle if need be: a key ends with the target."""
    most = max(5, int(width / _CHARACTER))
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[: most - 1 - half]}…{text[len(text) - half :]}"


def _parts(row: Row) -> tuple[float, float, float]:
    return row.lower_s or 0.0, row.compile_s or 0.0, row.link_s or 0.0


def seconds_plot(rows: Sequence[Row]) -> Markup | None:
    """Return what each variant took, the slowest first; with names where there is room."""
    timed = sorted((row for row in rows if sum(_parts(row)) > 0), key=lambda row: -sum(_parts(row)))
    if not timed:
        return None
    draw = _named_seconds if len(timed) <= _BARS_NAMED else _many_seconds
    return draw(timed)


def _words(row: Row) -> str:
    named = [
        f"{name} {seconds(value)}"
        for (name, _), value in zip(_PART_NAMES, _parts(row), strict=True)
        if value
    ]
    return f"{row.key}\n{', '.join(named)}"


def _named_seconds(rows: Sequence[Row]) -> Markup:
    pitch, left, right, top = 22, 480.0, 64, 22
    axis = ticks(sum(_parts(rows[0])), 6)
    scale = (WIDE - left - right) / axis[-1]
    bottom = top + pitch * len(rows)
    parts = [_line(left + t * scale, top, left + t * scale, bottom) for t in axis]
    parts += [_text(left + t * scale, top - 8, f"{t:g} s", "middle", "axis") for t in axis]
    for index, row in enumerate(rows):
        y, x = top + index * pitch, left
        label = _shortened(row.key, left - 12)
        parts.append(_text(left - 8, y + 15, label, "end"))
        for (_, kind), value in zip(_PART_NAMES, _parts(row), strict=True):
            parts.append(_rect(x, y + 4, value * scale - 1, pitch - 8, kind, _words(row)))
            x += value * scale
        parts.append(_text(x + 6, y + 15, seconds(sum(_parts(row))), kind="axis"))
    return _svg(WIDE, bottom + 4, "seconds of each variant", parts)


def _many_seconds(rows: Sequence[Row]) -> Markup:
    left, right, top, height = 52, 8, 12, 220
    axis = ticks(sum(_parts(rows[0])), 6)
    scale = height / axis[-1]
    pitch = (WIDE - left - right) / len(rows)
    gap = 1 if pitch >= 4 else 0
    parts = []
    for t in axis:
        y = top + height - t * scale
        parts += [
            _line(left, y, WIDE - right, y),
            _text(left - 8, y + 4, f"{t:g} s", "end", "axis"),
        ]
    for index, row in enumerate(rows):
        x, y = left + index * pitch, float(top + height)
        for (_, kind), value in zip(_PART_NAMES, _parts(row), strict=True):
            y -= value * scale
            parts.append(_rect(x, y, pitch - gap, value * scale, kind, _words(row)))
    caption = f"{len(rows)} variants, the slowest first; the slowest is {rows[0].key}"
    parts.append(_text(left, top + height + 20, _shortened(caption, WIDE - left), kind="axis"))
    return _svg(WIDE, top + height + 28, "seconds of each variant", parts)


def sizes_plot(sums: Sequence[OperatorTotals]) -> Markup | None:
    """Return the bytes of each operator's artifacts."""
    shown = [item for item in sums if item.num_artifacts]
    if not shown:
        return None
    pitch, left, right, top = 22, 250.0, 112, 4
    largest = max(item.size_bytes for item in shown) or 1
    scale = (HALF - left - right) / largest
    parts = []
    for index, item in enumerate(shown):
        y = top + index * pitch
        name = f"{item.operator} {item.backend}"
        words = f"{size(item.size_bytes)} · {item.num_artifacts}"
        width = item.size_bytes * scale
        parts += [
            _text(left - 8, y + 15, _shortened(name, left - 8), "end"),
            _rect(left, y + 4, max(1.0, width), pitch - 8, "s1", f"{name}: {words}"),
            _text(left + width + 6, y + 15, words, kind="axis"),
        ]
    return _svg(HALF, top + pitch * len(shown) + 4, "bytes of each operator", parts)


def registers_plot(rows: Sequence[Row]) -> Markup | None:
    """Return how many artifacts use how many registers; those that spill stand out."""
    known = [row for row in rows if row.registers is not None]
    if not known:
        return None
    num_bins = _MAX_REGISTERS // _REGISTERS_PER_BIN
    bins: list[list[Row]] = [[] for _ in range(num_bins)]
    for row in known:
        bins[min((row.registers or 0) // _REGISTERS_PER_BIN, num_bins - 1)].append(row)
    left, right, top, height = 44, 12, 10, 180
    axis = [t for t in ticks(max(map(len, bins))) if t == int(t)]
    scale = height / axis[-1]
    pitch = (HALF - left - right) / num_bins
    parts = []
    for t in axis:
        y = top + height - t * scale
        parts += [_line(left, y, HALF - right, y), _text(left - 8, y + 4, f"{t:g}", "end", "axis")]
    for index, found in enumerate(bins):
        spilled = sum(bool(row.spill_bytes) for row in found)
        low = index * _REGISTERS_PER_BIN
        words = f"{low} to {low + _REGISTERS_PER_BIN - 1} registers: {len(found)}"
        words += f", {spilled} with spills" if spilled else ""
        x, y = left + index * pitch, float(top + height)
        for count, kind in ((len(found) - spilled, "s1"), (spilled, "bad")):
            y -= count * scale
            if count:
                parts.append(_rect(x + 0.75, y, pitch - 1.5, count * scale, kind, words))
    for registers in range(0, _MAX_REGISTERS + 1, 32):
        x = left + registers / _REGISTERS_PER_BIN * pitch
        parts.append(_text(x, top + height + 18, str(registers), "middle", "axis"))
    parts.append(_text(left, top + height + 36, "registers of a thread", kind="axis"))
    return _svg(HALF, top + height + 42, "registers", parts)


def on_chip_plot(rows: Sequence[Row]) -> Markup | None:
    """Return each artifact's shared memory or unified buffer as a share of what there is.

    Operators that need none have no line.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if on_chip_share(row):
            groups.setdefault(f"{row.operator} {row.backend}", []).append(row)
    if not groups:
        return None
    pitch, left, right, top = 22, 250.0, 122, 22
    width = HALF - left - right
    bottom = top + pitch * len(groups)
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, kind = left + share * width, "limit" if share == 1 else "grid"
        parts += [
            _line(x, top, x, bottom, kind),
            _text(x, top - 8, f"{share:.0%}", "middle", "axis"),
        ]
    for index, (name, found) in enumerate(sorted(groups.items())):
        y = top + index * pitch
        for row in found:
            x = left + min(1.0, on_chip_share(row) or 0.0) * width
            words = f"{row.key}\n{_of_limit(row)}"
            parts.append(_rect(x - 1.5, y + 4, 3, pitch - 8, "s1 tick", words))
        largest = max(found, key=lambda row: on_chip_share(row) or 0.0)
        parts += [
            _text(left - 8, y + 15, _shortened(name, left - 8), "end"),
            _text(HALF - right + 10, y + 15, _of_limit(largest), kind="axis"),
        ]
    return _svg(HALF, bottom + 4, "on-chip memory against its limit", parts)


def _of_limit(row: Row) -> str:
    used, limit = row.on_chip_bytes or 0, row.on_chip_limit_bytes or 0
    return f"{used / 1024:.4g} of {limit / 1024:.4g} KiB"


def timeline_plot(lanes: Sequence[Lane]) -> Markup | None:
    """Return when each worker built what; gaps are time in which it had nothing to do."""
    if not lanes:
        return None
    pitch = 26 if len(lanes) <= 16 else 16
    left, right, top = 200.0, 60, 6
    axis = time_ticks(max(0.1, *(item.end_s for lane in lanes for item in lane.intervals)))
    scale = (WIDE - left - right) / axis[-1]
    bottom = top + pitch * len(lanes)
    parts = [_line(left + t * scale, top, left + t * scale, bottom) for t in axis]
    parts += [
        _text(
            left + t * scale,
            bottom + 16,
            f"{t:g} s" if t < 60 else seconds(t).split()[0],
            "middle",
            "axis",
        )
        for t in axis
    ]
    for index, lane in enumerate(lanes):
        y = top + index * pitch
        parts.append(_text(left - 8, y + pitch / 2 + 4, _shortened(lane.name, left - 8), "end"))
        for item in lane.intervals:
            x, width = left + item.start_s * scale, (item.end_s - item.start_s) * scale
            words = f"{item.row.key}\n{seconds(item.end_s - item.start_s)}"
            parts.append(_rect(x, y + 3, max(1.0, width - 1), pitch - 6, _kind(item.row), words))
        parts.append(_text(WIDE - right + 10, y + pitch / 2 + 4, f"{lane.share:.0%}", kind="axis"))
    return _svg(WIDE, bottom + 24, "what each worker built when", parts)


def _kind(row: Row | FailedRow) -> str:
    if isinstance(row, FailedRow):
        return "bad"
    return "s3" if row.source == "linked" else "s1"
