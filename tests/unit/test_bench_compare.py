"""What a comparison of two files of results calls worse, and what it does not."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"
RESULTS = ROOT / "bench" / "results"

Record = dict[str, Any]


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_compare", ROOT / "bench" / "compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(compare, tmp_path, capsys) -> Callable[..., tuple[int, str]]:
    """Compare two lists of records; return the exit code and what was printed."""

    def compared(old: list[Record], new: list[Record], *options: str) -> tuple[int, str]:
        for name, records in (("old.jsonl", old), ("new.jsonl", new)):
            (tmp_path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
        code = compare.main([str(tmp_path / "old.jsonl"), str(tmp_path / "new.jsonl"), *options])
        return code, capsys.readouterr().out

    return compared


def timed(
    case: str = "a", *, median: float, least: float, greatest: float, **more: object
) -> Record:
    ours = {"median_us": median, "min_us": least, "max_us": greatest}
    return {"kind": "kernel_time", "case": case, "num_tokens": 64, "ours": ours, **more}


def repeated(times: list[float]) -> Record:
    record = timed(median=sorted(times)[len(times) // 2], least=min(times), greatest=max(times))
    record["ours"]["times_us"] = times
    return record


def real(name: str) -> list[Record]:
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def kept(name: str) -> list[Record]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def test_slower_than_every_repeat_and_the_margin_is_worse(run):
    old = [timed(median=10, least=9, greatest=11)]
    code, printed = run(old, [timed(median=12, least=11.5, greatest=13)])
    assert code == 1
    assert printed.splitlines() == [
        "worse      1.20 x       10.000 ->      12.000 us    kernel_time a num_tokens=64: ours",
        "1 compared: 1 worse, 0 better, 0 missing, 0 new",
    ]


@pytest.mark.parametrize(
    ("median", "least", "greatest"),
    [
        (12, 10.9, 13),  # one repeat is as quick as before
        (10.4, 11.01, 12),  # within the margin
        (8, 7, 8.9),
    ],
)
def test_noise_margin_and_gain_are_not_worse(run, median, least, greatest):
    old = [timed(median=10, least=9, greatest=11)]
    assert run(old, [timed(median=median, least=least, greatest=greatest)])[0] == 0


def test_a_gain_is_named_and_nothing_else(run):
    code, printed = run(
        [timed(median=10, least=9, greatest=11)], [timed(median=8, least=7, greatest=8.5)]
    )
    assert code == 0
    assert printed.startswith("better     0.80 x")


def test_the_margin_is_chosen(run):
    old, new = (
        [timed(median=10, least=9.9, greatest=10.1)],
        [timed(median=11, least=10.9, greatest=12)],
    )
    assert run(old, new)[0] == 1
    assert run(old, new, "--margin", "0.2")[0] == 0


def test_an_outlier_does_not_hide_what_all_other_repeats_show(run):
    old = [1.0, 1.02, 0.99, 1.01, 0.98, 1.03, 1.0, 1.01, 1.0, 5.0, 1.0, 1.02, 0.99, 1.01]
    new = [1.5, 1.52, 1.49, 1.51, 1.48, 1.53, 1.5, 1.51, 1.5, 1.51, 1.5, 1.52, 1.49, 1.5]
    assert run([repeated(old)], [repeated(new)])[0] == 1
    # The range alone, which older records have, cannot tell.
    assert (
        run(
            [timed(median=1.0, least=0.98, greatest=5.0)],
            [timed(median=1.5, least=1.48, greatest=1.53)],
        )[0]
        == 0
    )


@pytest.mark.parametrize("num_repeats", [3, 5, 7, 20])
def test_the_same_noise_twice_is_rarely_worse(compare, num_repeats):
    generator = random.Random(num_repeats)

    def sample() -> object:
        times = [10 * generator.lognormvariate(0, 0.3) for _ in range(num_repeats)]
        return compare.samples(repeated(times))["ours"]

    flagged = sum(
        compare.is_slower(sample(), sample(), margin=0.05, few_margin=0.25) for _ in range(2000)
    )
    # Complete separation of 3 from 3 is 1 chance in 20, of 5 from 5 one in 252; then 1 in 1000.
    assert flagged <= {3: 130, 5: 20, 7: 8, 20: 8}[num_repeats]


def test_few_repeats_need_the_greater_margin(run):
    old = [timed(median=10, least=10, greatest=10, runs=1)]
    new = [timed(median=12, least=12, greatest=12, runs=1)]
    assert run(old, new)[0] == 0
    assert run(old, new, "--few-margin", "0.1")[0] == 1
    assert run(old, [timed(median=13, least=13, greatest=13, runs=1)])[0] == 1


def test_a_size_needs_the_margin_alone(run):
    def size(size_bytes: int) -> Record:
        return {"kind": "artifact_size", "target": "t", "operator": "o", "size_bytes": size_bytes}

    assert run([size(1000)], [size(1049)])[0] == 0
    code, printed = run([size(1000)], [size(1051)])
    assert code == 1
    assert "bytes artifact_size o t: size_bytes" in printed


def test_records_are_paired_by_what_they_measure(run):
    old = [timed("a", median=1, least=1, greatest=1), timed("b", median=9, least=9, greatest=9)]
    new = [timed("b", median=9, least=9, greatest=9), timed("c", median=5, least=5, greatest=5)]
    code, printed = run(old, new)
    assert code == 0
    assert printed.splitlines() == [
        "missing  kernel_time a num_tokens=64",
        "new      kernel_time c num_tokens=64",
        "1 compared: 0 worse, 0 better, 1 missing, 1 new",
    ]


def test_times_of_others_are_shown_and_do_not_count(run):
    def beside(peer: float) -> Record:
        record = timed(median=1, least=1, greatest=1)
        return {**record, "peer": {"median_us": peer, "min_us": peer, "max_us": peer}}

    code, printed = run([beside(2.0)], [beside(3.0)])
    assert code == 0
    assert printed.startswith("not ours   1.50 x")


def test_another_machine_or_version_is_a_warning(run):
    def on(device: str, torch: str, load: float) -> Record:
        return timed(
            median=1,
            least=1,
            greatest=1,
            device=device,
            versions={"torch": torch},
            load_average=load,
        )

    code, printed = run([on("A", "2.1", 0.1)], [on("B", "2.2", 4.0)])
    assert code == 0
    assert printed.splitlines()[:3] == [
        "warning: device: is B, was A",
        "warning: torch: is 2.2, was 2.1",
        "warning: load average: is up to 4, was up to 0.1",
    ]


def test_json_says_the_same(run):
    old, new = [timed(median=10, least=9, greatest=11)], [timed(median=20, least=19, greatest=21)]
    code, printed = run(old, new, "--json")
    assert code == 1
    tree = json.loads(printed)
    assert tree["worse"] == [
        {
            "what": "kernel_time a num_tokens=64: ours",
            "unit": "us",
            "old": 10,
            "new": 20,
            "ratio": 2.0,
        }
    ]
    assert tree["num_compared"] == 1
    assert tree["better"] == tree["missing"] == tree["new"] == tree["warnings"] == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "new.jsonl:1: is no JSON: "),
        ("[1]\n", "new.jsonl:1: is no record, must be an object with a kind\n"),
        ('\n{"case": "a"}\n', "new.jsonl:2: is no record, must be an object with a kind\n"),
        ('{"kind": "a"}\n{"kind": "a"}\n', "new.jsonl:2: measures a, as a line before\n"),
        ('{"kind": "other"}\n', "measures nothing that "),
        (None, "new.jsonl: cannot be read: "),
    ],
)
def test_files_that_are_no_good_end_with_2(compare, tmp_path, capsys, content, message):
    (tmp_path / "old.jsonl").write_text(json.dumps(timed(median=1, least=1, greatest=1)) + "\n")
    if content is not None:
        (tmp_path / "new.jsonl").write_text(content)
    assert compare.main([str(tmp_path / "old.jsonl"), str(tmp_path / "new.jsonl")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"median_us": "1"}, "median_us: is '1', must be a number of at least 0"),
        ({"median_us": True}, "median_us: is True, must be a number of at least 0"),
        ({"median_us": 10**400}, "median_us: is 1000"),
        ({"min_us": None}, "min_us: is None, must be a number of at least 0"),
        ({"max_us": math.nan}, "max_us: is nan, must be a number of at least 0"),
        ({"times_us": 5}, "times_us: is 5, must be a list"),
        ({"times_us": [1, []]}, "times_us: is [], must be a number of at least 0"),
        ({"size_bytes": "x"}, "size_bytes: is 'x', must be a number of at least 0"),
        ({"size_bytes": -1}, "size_bytes: is -1, must be a number of at least 0"),
        ({"case": ["a"]}, "case: is ['a'], must be a text or a number"),
        ({"device": {}}, "device: is {}, must be a text or a number"),
        ({"versions": 3}, "versions: is 3, must be an object"),
        ({"load_average": "high"}, "load_average: is 'high', must be a number of at least 0"),
        ({"runs": "3"}, "runs: is '3', must be a number of at least 0"),
    ],
)
def test_record_that_cannot_be_compared_is_no_regression(
    compare, tmp_path, capsys, fields, message
):
    path = tmp_path / "both.jsonl"
    whole = {"kind": "a", "median_us": 1, "min_us": 1, "max_us": 1}
    path.write_text(json.dumps({**whole, **fields}) + "\n")
    assert compare.main([str(path), str(path)]) == 2
    assert f"both.jsonl:1: {message}" in capsys.readouterr().err


def test_growth_from_nothing_is_worse_and_valid_json(run):
    none, some = ({"kind": "a", "size_bytes": size} for size in (0, 1))
    code, text = run([none], [some], "--json")
    assert code == 1
    (change,) = json.loads(text, parse_constant=pytest.fail)["worse"]
    assert (change["old"], change["new"], change["ratio"]) == (0, 1, None)
    assert "inf x" in run([none], [some])[1]


def test_reader_that_leaves_early_is_no_regression():
    path = RESULTS / "h200_host_time.jsonl"
    command = [sys.executable, str(ROOT / "bench" / "compare.py"), str(path), str(path)]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_units_that_differ_are_no_good(compare, tmp_path, capsys):
    for name, unit in (("old", "us"), ("new", "ms")):
        record = {"kind": "a", f"median_{unit}": 1, f"min_{unit}": 1, f"max_{unit}": 1}
        (tmp_path / name).write_text(json.dumps(record) + "\n")
    assert compare.main([str(tmp_path / "old"), str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err == "a: : is in ms, must be in us\n"


def test_a_bad_margin_ends_with_2(compare, capsys):
    for value in ("-1", "inf", "nan", "x"):
        with pytest.raises(SystemExit) as ended:
            compare.main(["a", "b", "--margin", value])
        assert ended.value.code == 2
    capsys.readouterr()


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_file_of_results_compares_with_itself(compare, capsys, path):
    assert compare.main([str(path), str(path)]) == 0
    (last,) = capsys.readouterr().out.splitlines()
    assert " compared: 0 worse, 0 better, 0 missing, 0 new" in last
    assert not last.startswith("0 ")


def test_real_times_that_doubled_are_all_worse(run):
    old = real("h200_kernel_time.jsonl")

    def doubled(value: float | list[float]) -> float | list[float]:
        return [2 * each for each in value] if isinstance(value, list) else 2 * value

    new = [
        {**record, "ours": {name: doubled(value) for name, value in record["ours"].items()}}
        for record in old
    ]
    code, printed = run(old, new)
    assert code == 1
    assert f" compared: {len(old)} worse, 0 better, 0 missing, 0 new" in printed


def test_a_busy_host_is_seen_in_what_is_not_ours_too(run):
    code, printed = run(kept("host_time_quiet.jsonl"), kept("host_time_busy.jsonl"))
    assert code == 1
    assert "not ours   2.22 x" in printed
    assert "8 compared: 5 worse, 0 better, 0 missing, 0 new" in printed


def test_the_page_shows_what_is_printed(run):
    page = (ROOT / "docs" / "performance.md").read_text()
    _, _, rest = page.partition("$ python bench/compare.py OLD.jsonl NEW.jsonl\n")
    shown = rest.partition("```")[0].splitlines()
    _, printed = run(kept("host_time_quiet.jsonl"), kept("host_time_busy.jsonl"))
    assert shown
    assert set(shown) <= set(printed.splitlines())
