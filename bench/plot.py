"""Draws docs/plots/<operator>.svg from the kernel times in bench/results: ours and what is beside.

And what plot_cpu.py draws of builds and the simulator.

python bench/plot.py [--check]
"""

from __future__ import annotations

import io
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

import plot_cpu
from report import ROOT, Record, one_a_shape, read_records

mpl.use("svg")

PLOTS = ROOT / "docs" / "plots"
COLUMNS = 3
COLOURS = {"eager": "tab:orange", "peer": "tab:gray", "ours": "tab:blue"}
# The same records give the same bytes.
SETTINGS = {"svg.hashsalt": "tilewheel", "svg.fonttype": "none", "font.size": 9}


def draw(cases: dict[str, list[Record]]) -> bytes:
    """Return one figure with a panel for each case, as SVG."""
    columns = min(COLUMNS, len(cases))
    rows = -(-len(cases) // columns)
    size = (4.2 * columns, 3.0 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for panel, (case, records) in zip(axes.flat, cases.items(), strict=False):
        for who, colour in COLOURS.items():
            shown = one_a_shape(records, "eager" if who == "eager" else "peer")
            points = [(r["num_tokens"], r[who]["median_us"]) for r in shown if who in r]
            if points:
                panel.plot(*zip(*sorted(points), strict=True), "o-", ms=3, color=colour, label=who)
        panel.set(xscale="log", yscale="log", title=case, xlabel="tokens", ylabel="us")
        panel.grid(visible=True, alpha=0.3)
        # A panel may have less than a decade, which by itself has no number at its axis.
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.legend()
    for panel in axes.flat[len(cases) :]:
        panel.set_visible(False)
    return svg(figure)


def svg(figure: Figure) -> bytes:
    """Return a figure as SVG and close it."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    plt.close(figure)
    return b"\n".join(line.rstrip() for line in file.getvalue().splitlines()) + b"\n"


def plots(records: list[Record]) -> dict[Path, bytes]:
    """Return the plots by path: one for each operator, and those of the CPU."""
    operators: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record["kind"] == "kernel_time":
            operators[record["operator"]][record["case"]].append(record)
    with plt.rc_context(SETTINGS):
        made = {PLOTS / f"{name}.svg": draw(dict(cases)) for name, cases in operators.items()}
        for name, figure in plot_cpu.figures(records).items():
            made[PLOTS / f"{name}.svg"] = svg(figure)
    return made


def main() -> int:
    made = plots(read_records())
    stale = [p for p in made if not p.exists() or p.read_bytes() != made[p]]
    stale += [p for p in PLOTS.glob("*.svg") if p not in made]
    if "--check" in sys.argv:
        print(*stale, sep="\n", end="")
        return 1 if stale else 0
    PLOTS.mkdir(parents=True, exist_ok=True)
    for path in PLOTS.glob("*.svg"):
        path.unlink()
    for path, image in made.items():
        path.write_bytes(image)
    return 0


if __name__ == "__main__":
    sys.exit(main())
