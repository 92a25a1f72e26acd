"""Says what got worse between two files of results, beyond the noise of their own repeats.

python bench/compare.py OLD.jsonl NEW.jsonl [--margin 0.05] [--few-margin 0.25] [--json]

Records are paired by what they measure. A time is worse where its median grew by more than the
margin and the repeats say that this is no accident: every new one is slower than every old one or,
where both records keep all their repeats, a rank test finds less than one chance in 1000. Records
with fewer than three repeats cannot tell and need the greater margin. A size is worse where it grew
by more than the margin. Times of the peer, of the references and of torch are shown where they
changed, as the machine's, and never count.

Ends with 0 where nothing is worse, 1 where something is, and 2 where the files or the command line
are no good.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

EXIT_SAME, EXIT_WORSE, EXIT_UNREADABLE = 0, 1, 2

IDENTITY = (
    *("kind", "operator", "case", "key", "target", "profile", "num_tokens", "num_threads"),
    *("races", "workers", "who", "what", "phase", "wheel", "tag"),
)
"""Fields that say what a record measures, in the order in which they are shown."""

MACHINE = ("device", "num_sms", "num_cores", "cuda")
"""Fields that say where; two that differ are compared all the same, with a warning."""

BASELINE = re.compile(
    r"peer\b|reference\b|import torch$|torch\.empty of the outputs$|empty TVM-FFI call$"
)
"""What is measured beside ours: a change of it is the machine's or another package's."""

FEW = 3
CHANCE_Z = 3.09
"""Standard deviations of a chance of 1 in 1000, to one side."""

_MEDIAN = re.compile(r"median_(us|ms|s)$")

Record = dict[str, Any]
Identity = tuple[tuple[str, Any], ...]


class UnreadableError(ValueError):
    """A file is missing, or its lines are no records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured quantity of a record. ``num_repeats`` is None where the record does not say."""

    unit: str
    median: float
    least: float
    greatest: float
    repeats: tuple[float, ...] = ()
    num_repeats: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A quantity that changed beyond the noise.

    ``ratio`` is the new median over the old, None where that was 0.
    """

    what: str
    unit: str
    old: float
    new: float
    ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What two files say, in the order of the new one."""

    worse: tuple[Change, ...]
    better: tuple[Change, ...]
    baselines: tuple[Change, ...]
    missing: tuple[str, ...]
    new: tuple[str, ...]
    warnings: tuple[str, ...]
    num_compared: int


def read(path: Path) -> dict[Identity, Record]:
    """Return the records of a file by what they measure.

    Raises:
        UnreadableError: it cannot be read, a line is no record, or two measure the same.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableError(f"{path}: cannot be read: {error}") from error
    records: dict[Identity, Record] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UnreadableError(f"{path}:{number}: is no JSON: {error}") from error
        if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
            raise UnreadableError(f"{path}:{number}: is no record, must be an object with a kind")
        try:
            _check(record)
        except UnreadableError as error:
            raise UnreadableError(f"{path}:{number}: {error}") from error
        identity = _identity(record)
        if identity in records:
            raise UnreadableError(f"{path}:{number}: measures {text(identity)}, as a line before")
        records[identity] = record
    return records


def _check(record: Record) -> None:
    """Refuse a record that cannot be compared: what fails later would look like a regression."""
    for name in (*IDENTITY, *MACHINE):
        if isinstance(record.get(name), (dict, list)):
            raise UnreadableError(f"{name}: is {record[name]!r:.50}, must be a text or a number")
    if not isinstance(record.get("versions", {}), dict):
        raise UnreadableError(f"versions: is {record['versions']!r:.50}, must be an object")
    for name in ("load_average", "runs"):
        if name in record:
            _value(record, name)
    samples(record)


def _value(part: Record, field: str) -> float:
    return _finite(part.get(field), field)


def _finite(value: Any, field: str) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= sys.float_info.max:
        raise UnreadableError(f"{field}: is {value!r:.50}, must be a number of at least 0")
    return float(value)


def _identity(record: Record) -> Identity:
    # A case or a key names the operator, which the first records did not.
    implied = {"operator"} if "case" in record or "key" in record else set()
    return tuple((n, record[n]) for n in IDENTITY if n in record and n not in implied)


def text(identity: Identity) -> str:
    """Return an identity in words."""
    named = dict(identity)
    if "key" in named:
        named.pop("target", None)  # which the key ends with
    bare = ("kind", "operator", "case", "key", "target", "workers", "who", "what", "phase", "wheel")
    return " ".join(str(v) if n in bare else f"{n}={v}" for n, v in named.items())


def samples(record: Record) -> dict[str, Sample]:
    """Return what a record measures by name, ``""`` for what stands in the record itself."""
    parts = {"": record} | {n: part for n, part in record.items() if isinstance(part, dict)}
    found = {}
    for name, part in parts.items():
        for field in part:
            if match := _MEDIAN.match(field):
                found[name] = _time(part, match[1], record.get("runs"))
            elif field.endswith("_bytes") and not name:
                value = _value(part, field)
                sample = Sample(unit="bytes", median=value, least=value, greatest=value)
                found[field] = sample
    return found


def _time(part: Record, unit: str, num_repeats: int | None) -> Sample:
    times = part.get(f"times_{unit}", [])
    if not isinstance(times, list):
        raise UnreadableError(f"times_{unit}: is {times!r:.50}, must be a list")
    repeats = tuple(_finite(value, f"times_{unit}") for value in times)
    return Sample(
        unit=unit,
        median=_value(part, f"median_{unit}"),
        least=_value(part, f"min_{unit}"),
        greatest=_value(part, f"max_{unit}"),
        repeats=repeats,
        num_repeats=len(repeats) or num_repeats,
    )


def is_slower(slow: Sample, fast: Sample, *, margin: float, few_margin: float) -> bool:
    """Return whether one sample is above another beyond the noise of both."""
    if slow.unit == "bytes":
        return slow.median > fast.median * (1 + margin)
    counts = [sample.num_repeats for sample in (slow, fast)]
    is_few = any(count is not None and count < FEW for count in counts)
    if slow.median <= fast.median * (1 + (few_margin if is_few else margin)):
        return False
    return slow.least > fast.greatest or ranks_above(slow.repeats, fast.repeats)


def ranks_above(high: Sequence[float], low: Sequence[float]) -> bool:
    """Return whether a Mann-Whitney test finds that ``high`` exceeds ``low`` (p < 0.001).

    Fewer than eight repeats each cannot reach that.
    """
    n, m = len(high), len(low)
    if min(n, m) == 0:
        return False
    wins = sum((a > b) + 0.5 * (a == b) for a in high for b in low)
    deviation = math.sqrt(n * m * (n + m + 1) / 12)
    return (wins - 0.5 - n * m / 2) / deviation > CHANCE_Z


def compare(
    old: dict[Identity, Record],
    new: dict[Identity, Record],
    *,
    margin: float,
    few_margin: float,
) -> Comparison:
    """Compare the records that are in both."""
    worse: list[Change] = []
    better: list[Change] = []
    baselines: list[Change] = []
    missing = [text(identity) for identity in old if identity not in new]
    added = [text(identity) for identity in new if identity not in old]
    num_compared = 0
    for identity, record in new.items():
        if identity not in old:
            continue
        before, after = samples(old[identity]), samples(record)
        missing += [f"{text(identity)}: {name}" for name in before if name not in after]
        added += [f"{text(identity)}: {name}" for name in after if name not in before]
        for name in (name for name in after if name in before):
            first, second = before[name], after[name]
            if first.unit != second.unit:
                raise UnreadableError(
                    f"{text(identity)}: {name}: is in {second.unit}, must be in {first.unit}"
                )
            num_compared += 1
            is_worse = is_slower(second, first, margin=margin, few_margin=few_margin)
            if not is_worse and not is_slower(first, second, margin=margin, few_margin=few_margin):
                continue
            change = Change(
                what=f"{text(identity)}: {name}" if name else text(identity),
                unit=second.unit,
                old=first.median,
                new=second.median,
                ratio=round(second.median / first.median, 3) if first.median else None,
            )
            if is_baseline(identity, name):
                baselines.append(change)
            else:
                (worse if is_worse else better).append(change)
    return Comparison(
        worse=tuple(worse),
        better=tuple(better),
        baselines=tuple(baselines),
        missing=tuple(missing),
        new=tuple(added),
        warnings=warnings(old, new),
        num_compared=num_compared,
    )


def is_baseline(identity: Identity, name: str) -> bool:
    """Return whether a quantity is not ours but what ours is measured beside."""
    said = [str(value) for field, value in identity if field in ("who", "what", "phase")]
    return any(BASELINE.match(word) for word in (name, *said))


def warnings(old: dict[Identity, Record], new: dict[Identity, Record]) -> tuple[str, ...]:
    """Return how machines and versions of the paired records differ."""
    found: dict[str, None] = {}
    loads: list[tuple[float, float]] = []
    for identity in (identity for identity in new if identity in old):
        before, after = old[identity], new[identity]
        pairs = [(name, before.get(name), after.get(name)) for name in MACHINE]
        first, second = before.get("versions", {}), after.get("versions", {})
        names = dict.fromkeys((*first, *second))
        pairs += [(name, first.get(name), second.get(name)) for name in names]
        for name, was, now in pairs:
            if was != now:
                found[f"{name}: is {now or 'not there'}, was {was or 'not there'}"] = None
        if "load_average" in before and "load_average" in after:
            loads.append((before["load_average"], after["load_average"]))
    if loads:
        was, now = (max(column) for column in zip(*loads, strict=True))
        if abs(now - was) > 1:
            found[f"load average: is up to {now:g}, was up to {was:g}"] = None
    return tuple(found)


def table(comparison: Comparison) -> str:
    """Return the comparison for people."""
    lines = [f"warning: {warning}" for warning in comparison.warnings]
    for title, changes in (
        ("worse", comparison.worse),
        ("better", comparison.better),
        ("not ours", comparison.baselines),
    ):
        for change in sorted(changes, key=_growth, reverse=title == "worse"):
            lines.append(
                f"{title:8} {_growth(change):6.2f} x  {_number(change.old)} -> "
                f"{_number(change.new)} {change.unit:5} {change.what}"
            )
    lines += [f"missing  {what}" for what in comparison.missing]
    lines += [f"new      {what}" for what in comparison.new]
    lines.append(
        f"{comparison.num_compared} compared: {len(comparison.worse)} worse, "
        f"{len(comparison.better)} better, {len(comparison.missing)} missing, "
        f"{len(comparison.new)} new"
    )
    return "\n".join(lines)


def _growth(change: Change) -> float:
    return math.inf if change.ratio is None else change.ratio


def _number(value: float) -> str:
    return f"{value:11.3f}" if value < 1e5 else f"{value:11.0f}"


def main(arguments: Sequence[str]) -> int:
    """Compare two files and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--margin", type=_margin, default=0.05, help="least growth of a median")
    parser.add_argument("--few-margin", type=_margin, default=0.25, help="below three repeats")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        comparison = compare(
            read(options.old),
            read(options.new),
            margin=options.margin,
            few_margin=options.few_margin,
        )
    except UnreadableError as error:
        print(error, file=sys.stderr)
        return EXIT_UNREADABLE
    if comparison.num_compared == 0:
        print(f"{options.new}: measures nothing that {options.old} does", file=sys.stderr)
        return EXIT_UNREADABLE
    tree = asdict(comparison)
    print(json.dumps(tree, indent=1, allow_nan=False) if options.json else table(comparison))
    return EXIT_WORSE if comparison.worse else EXIT_SAME


def _margin(value: str) -> float:
    try:
        margin = float(value)
    except ValueError:
        margin = math.nan
    if not 0 <= margin < math.inf:
        raise argparse.ArgumentTypeError(f"is {value!r}, must be a number of at least 0")
    return margin


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # a reader such as `head` left early; 1 would mean worse
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    sys.exit(code)
