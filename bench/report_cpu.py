"""Tables of docs/performance.md about what a CPU does: builds, the simulator, import and load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Record = dict[str, Any]

SIMULATED_CAST = "per_token_cast e4m3 32, 256 x 7168"
REPRESENTATIVES = "one of each operator"
NO_RECORD = "No record yet."


def budgets(records: list[Record]) -> str:
    """Return each budget beside what was measured; one without a record is left out."""
    lines = ["| budget | at most | measured | met |", "|---|--:|---|---|"]
    found = [line for budget in _BUDGETS if (line := budget(records))]
    return "\n".join([*lines, *found]) if found else NO_RECORD


def _row(what: str, limit: str, measured: str, *, is_met: bool) -> str:
    return f"| {what} | {limit} | {measured} | {'yes' if is_met else 'no'} |"


def _cold(records: list[Record]) -> str:
    rows = _of(records, "build_unit")
    if not rows:
        return ""
    slow = [row for row in rows if row["cold"]["median_s"] > 5]
    worst = max(rows, key=lambda row: row["cold"]["median_s"])
    processor = sorted(row["command_cpu"]["median_s"] for row in rows)
    measured = (
        f"{len(rows) - len(slow)} of {len(rows)} variants; the slowest "
        f"{worst['cold']['median_s']:.1f} s, {worst['operator']} for {worst['target']}; whole "
        f"commands had {processor[0]:.1f} to {processor[-1]:.1f} s of the processor"
    )
    return _row("lower and compile one variant, cold, one core", "5 s", measured, is_met=not slow)


def _unchanged(records: list[Record]) -> str:
    rows = [row for row in _of(records, "build_rebuild") if row["case"] == "unchanged"]
    if not rows:
        return ""
    row = max(rows, key=lambda row: row["num_artifacts"])
    measured = f"{row['wall']['median_s']:.2f} s for {row['num_artifacts']} artifacts"
    return _row("build of an unchanged tree", "5 s", measured, is_met=row["wall"]["median_s"] <= 5)


def _cast(records: list[Record]) -> str:
    for row in _of(records, "simulator"):
        if row["case"] == SIMULATED_CAST and not row["races"]:
            ours, processor = row["ours"]["median_ms"], row["ours_cpu"]["median_ms"]
            return _row(
                f"simulator: `{SIMULATED_CAST}`, one thread",
                "10 ms",
                f"{ours:.1f} ms, of it {processor:.1f} ms on the processor",
                is_met=ours <= 10,
            )
    return ""


def _wheel(records: list[Record]) -> str:
    what = "CUDA wheel of the release profile, one architecture"
    rows = [
        row
        for row in _of(records, "artifact_size")
        if (row["profile"], row["operator"]) == ("release", "all") and "cuda" in row["target"]
    ]
    if not rows:
        return ""
    size_mb = rows[0]["size_bytes"] / 1e6
    measured = f"{size_mb:.1f} MB of artifacts ({rows[0]['num_artifacts']}), before compression"
    return _row(what, "100 MB", measured, is_met=size_mb <= 100)


def _process(what: str, phase: str, limit_ms: float) -> Callable[[list[Record]], str]:
    def row(records: list[Record]) -> str:
        for record in _of(records, "cpu_start"):
            if record["phase"] == phase:
                median, processor = (record[name]["median_ms"] for name in ("wall", "cpu"))
                measured = f"{median:.2f} ms, of it {processor:.2f} ms on the processor"
                return _row(what, f"{limit_ms:g} ms", measured, is_met=median <= limit_ms)
        return ""

    return row


_BUDGETS: tuple[Callable[[list[Record]], str], ...] = (
    _cold,
    _unchanged,
    _cast,
    _wheel,
    _process("`import tilewheel` after torch", "import tilewheel, after torch", 50),
    _process("load one artifact, dlopen to callable", "load one more artifact", 1),
)


def build_unit(records: list[Record]) -> str:
    rows = _of(records, "build_unit")
    lines = [
        _machine(rows),
        "",
        "| operator | target | lower s | compile s | of it link s | both s | command s "
        "| on the processor s | KB |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    columns = ("lower", "compile", "link", "cold", "command", "command_cpu")
    for row in rows:
        times = [row[name]["median_s"] for name in columns]
        cells = " | ".join(f"{seconds:.2f}" for seconds in times)
        lines.append(
            f"| {row['operator']} | {row['target']} | {cells} | {row['size_bytes'] / 1e3:.1f} |"
        )
    return "\n".join(lines)


def build_whole(records: list[Record]) -> str:
    """Return first build, scaling with workers and rebuilds."""
    first = _of(records, "build_first")
    scaling, rebuilds = _of(records, "build_scaling"), _of(records, "build_rebuild")
    lines = [_machine([*first, *scaling, *rebuilds]), ""]
    lines += ["| build | how | s, median | range | speed-up |", "|---|---|--:|--:|--:|"]
    for row in first:
        lines.append(_wall(row["case"], "first on a machine: compiles zig's C library", row, "-"))
    alone = {row["case"]: row["wall"]["median_s"] for row in scaling[:1]}
    for row in scaling:
        ratio = alone[row["case"]] / row["wall"]["median_s"]
        lines.append(_wall(row["case"], row["workers"], row, f"{ratio:.2f} x"))
    for row in rebuilds:
        profile = row["profile"]
        named = profile if profile == REPRESENTATIVES else f"profile `{profile}`"
        lines.append(_wall(f"{row['num_artifacts']} artifacts, {named}", row["case"], row, "-"))
    return "\n".join(lines)


def _wall(build: str, how: str, row: Record, speed_up: str) -> str:
    wall = row["wall"]
    spread = f"{wall['min_s']:.2f}-{wall['max_s']:.2f}"
    return f"| {build} | {how} | {wall['median_s']:.2f} | {spread} | {speed_up} |"


def artifact_size(records: list[Record]) -> str:
    rows = _of(records, "artifact_size")
    if not rows:
        return NO_RECORD
    lines = [
        "| profile | target | operator | artifacts | KB |",
        "|---|---|---|--:|--:|",
    ]
    for row in rows:
        if row["profile"] == REPRESENTATIVES and row["operator"] != "all":
            continue  # the table of variants has them one by one
        lines.append(
            f"| {row['profile']} | {row['target']} | {row['operator']} | {row['num_artifacts']} "
            f"| {row['size_bytes'] / 1e3:.1f} |"
        )
    wheels = _of(records, "wheel_size")
    if wheels:
        lines += ["", "| wheel | tag | MB |", "|---|---|--:|"]
        for row in wheels:
            lines.append(f"| {row['wheel']} | {row['tag']} | {row['size_bytes'] / 1e6:.2f} |")
    return "\n".join(lines)


def simulator(records: list[Record]) -> str:
    rows = _of(records, "simulator")
    races = {row["case"]: row for row in rows if row["races"]}
    lines = [
        _machine(rows),
        "",
        "| case | ms | on the processor | M elements/s | with races | reference ms | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in (row for row in rows if not row["races"]):
        ours, plain = row["ours"]["median_ms"], row["reference"]["median_ms"]
        detected = races[row["case"]]["ours"]["median_ms"]
        lines.append(
            f"| {row['case']} | {ours:.2f} | {row['ours_cpu']['median_ms']:.2f} "
            f"| {row['elements_per_s'] / 1e6:.0f} | {detected:.2f} "
            f"| {plain:.2f} | {plain / ours:.2f} x |"
        )
    return "\n".join(lines)


def cpu_start(records: list[Record]) -> str:
    rows = _of(records, "cpu_start")
    lines = [
        _machine(rows),
        "",
        "| phase of a fresh process | ms, median | range | on the processor | processes |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        wall = row["wall"]
        lines.append(
            f"| {row['phase']} | {wall['median_ms']:.2f} "
            f"| {wall['min_ms']:.2f}-{wall['max_ms']:.2f} | {row['cpu']['median_ms']:.2f} "
            f"| {row['runs']} |"
        )
    return "\n".join(lines)


def _of(records: list[Record], kind: str) -> list[Record]:
    return [record for record in records if record["kind"] == kind]


def _machine(rows: list[Record]) -> str:
    """Return the machine, its load over the records and the versions, in one line."""
    if not rows:
        return NO_RECORD
    versions = ", ".join(f"{name} {version}" for name, version in rows[0]["versions"].items())
    loads = [row["load_average"] for row in rows]
    return (
        f"{rows[0]['device']}, {rows[0]['num_cores']} cores, load average {min(loads):.1f} to "
        f"{max(loads):.1f}; {versions}."
    )


SECTIONS: dict[str, Callable[[list[Record]], str]] = {
    "cpu_budgets": budgets,
    "build_unit": build_unit,
    "build_whole": build_whole,
    "artifact_size": artifact_size,
    "simulator": simulator,
    "cpu_start": cpu_start,
}
