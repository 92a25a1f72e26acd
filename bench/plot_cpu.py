"""Plots of what a CPU does: seconds of a unit by phase, and the simulator beside the reference."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

Record = dict[str, Any]


def figures(records: list[Record]) -> dict[str, Figure]:
    """Return a figure for each kind of record that is there, by the name of its plot."""
    units = [record for record in records if record["kind"] == "build_unit"]
    speeds = [record for record in records if record["kind"] == "simulator"]
    made = {}
    if units:
        made["build_time"] = _build_time(units)
    if speeds:
        made["simulator"] = _simulator(speeds)
    return made


def _build_time(rows: list[Record]) -> Figure:
    targets = list(dict.fromkeys(row["target"] for row in rows))
    figure, axes = plt.subplots(
        1, len(targets), figsize=(6.3 * len(targets), 4.2), squeeze=False, layout="constrained"
    )
    for panel, target in zip(axes.flat, targets, strict=True):
        own = [row for row in rows if row["target"] == target][::-1]
        names = [row["operator"] for row in own]
        left = [0.0] * len(own)
        for phase, colour in (("lower", "tab:blue"), ("compile", "tab:orange")):
            seconds = [row[phase]["median_s"] for row in own]
            panel.barh(names, seconds, left=left, color=colour, label=phase)
            left = [a + b for a, b in zip(left, seconds, strict=True)]
        panel.axvline(5, color="tab:gray", linestyle="--", label="budget")
        panel.set(title=target, xlabel="s, cold, on one core")
        panel.legend()
    return figure


def _simulator(rows: list[Record]) -> Figure:
    cases = list(dict.fromkeys(row["case"] for row in rows))[::-1]
    ours = {(row["case"], row["races"]): row for row in rows}
    bars = (
        ("reference", "tab:gray", [ours[case, False]["reference"] for case in cases]),
        ("with race detection", "tab:orange", [ours[case, True]["ours"] for case in cases]),
        ("simulator", "tab:blue", [ours[case, False]["ours"] for case in cases]),
    )
    figure, panel = plt.subplots(figsize=(8.4, 6.0), layout="constrained")
    height = 0.27
    for place, (name, colour, times) in enumerate(bars):
        where = [number + (place - 1) * height for number in range(len(cases))]
        panel.barh(where, [each["median_ms"] for each in times], height, color=colour, label=name)
    panel.set_yticks(range(len(cases)), cases)
    panel.set(xscale="log", xlabel="ms, one thread")
    panel.minorticks_off()
    panel.grid(visible=True, axis="x", alpha=0.3)
    panel.legend()
    return figure
