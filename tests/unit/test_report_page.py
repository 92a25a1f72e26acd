"""The page of a build report: what it shows, that hostile text stays text, that it is complete."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from report_rows import RUN, report, row

from tilewheel_build import report_plots as plots
from tilewheel_build.report import FailedRow, Report, Run
from tilewheel_build.report_page import facts, page, tiles
from tilewheel_build.report_totals import by_operator, lanes

HOSTILE = (
    "</script></style></title></pre><script>window.taken = 1</script>"
    "<img src=x onerror='taken=1'>\"'><svg onload=taken=1>{{ 7 * 7 }} & \x00\x1b[31m\x1b["
)


def hostile() -> Report:
    """Return a report all of whose texts are hostile."""
    texts = {"operator": HOSTILE, "backend": HOSTILE, "arch": HOSTILE, "machine": HOSTILE}
    failed = FailedRow(
        key=HOSTILE, message=HOSTILE, exit_code=6, worker=HOSTILE, start_s=1, end_s=2, **texts
    )
    bad = row(HOSTILE, spill_bytes=8, worker=HOSTILE, sha256=HOSTILE, verification=HOSTILE, **texts)
    run = replace(RUN, machine=HOSTILE, shard=HOSTILE, started=HOSTILE, executor=HOSTILE)
    return replace(
        report(bad, failures=(failed,)),
        command=HOSTILE,
        tilewheel_version=HOSTILE,
        source_commit=HOSTILE,
        runs=(run,),
    )


class Elements(HTMLParser):
    """Collects every element with its attributes, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_texts_make_no_element_and_no_attribute() -> None:
    elements = Elements(page(hostile()))
    plain = Elements(page(report(row("a"))))
    assert {tag for tag, _ in elements.found} - {tag for tag, _ in plain.found} <= {
        *("details", "summary", "pre"),
    }
    names = {name for _, attributes in elements.found for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in ("src", "href", "style")}
    assert [tag for tag, _ in elements.found].count("script") == 1
    # It is there to be read, without what no reader can see.
    assert "<img src=x onerror='taken=1'>" in elements.text
    assert "{{ 7 * 7 }}" in elements.text
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", page(hostile()))


@pytest.mark.parametrize(
    "made", [hostile(), report(row("a")), report()], ids=["bad", "one", "none"]
)
def test_page_needs_nothing_from_elsewhere(made: Report) -> None:
    text = page(made)
    policy = next(
        str(attributes["content"])
        for tag, attributes in Elements(text).found
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in re.sub(r"http-equiv", "", text)
    assert "@import" not in text
    assert "url(" not in text


def test_page_is_a_function_of_the_report() -> None:
    assert page(report(row("a"), row("b"))) == page(report(row("a"), row("b")))


def texts(made: Report) -> dict[str, str]:
    return {tile.title: f"{tile.value} {tile.note}" for tile in tiles(made)}


def test_tiles_sum_up_the_build() -> None:
    cached = {"cpu_s": None, "link_s": None, "worker": None}
    rows = (
        row("a", verification="simulator"),
        row("b", source="linked"),
        row("c", source="local", **cached),
        row("d", source="remote", **cached),
    )
    assert texts(report(*rows)) == {
        "artifacts": "4 1 compiled, 1 linked",
        "failed": "0 none",
        "from the cache": "2 1 local, 1 remote",
        "verified": "1 of 4, by the file's hash",
        "size": "8.0 KiB all artifacts",
        "wall time": "40.0 s start to end",
        "CPU time": "19.0 s 0.5 processors on average",
        "memory": "600 MiB the largest unit",
    }


def test_tiles_leave_out_what_nobody_knows() -> None:
    unknown = replace(
        report(row("c", source=None, cpu_s=None)), runs=(Run(machine="x86_64", shard="1/1"),)
    )
    assert not {"wall time", "CPU time", "memory"} & set(texts(unknown))
    assert ">unknown<" in page(unknown)


def test_facts_tell_of_one_build_or_of_its_shards() -> None:
    one = report(row("a"))
    assert facts(one) == [
        ("tilewheel", "0.1.0"),
        ("commit", "0123456789ab with changes"),
        ("for", "x86_64"),
        ("started", "2026-11-30 09:00:00 UTC"),
        ("on", "this machine, 2 at once"),
    ]
    runs = (
        replace(RUN, shard="1/2", started="2026-11-30T10:00:00+00:00"),
        replace(RUN, shard="2/2", executor="dask", jobs=None),
    )
    assert facts(replace(one, runs=runs))[2:] == [
        ("shards", "2"),
        ("for", "x86_64"),
        ("started", "2026-11-30 09:00:00 UTC"),
    ]
    assert facts(replace(one, runs=runs[1:]))[-1] == ("on", "dask")


def test_failures_come_with_their_message_and_a_row() -> None:
    failed = FailedRow(
        key="scale-hidden=1-cuda-sm_90a",
        operator="scale",
        backend="cuda",
        arch="sm_90a",
        machine="x86_64",
        message="kernel.cu(3): error: a < b",
        exit_code=6,
    )
    text = page(report(failures=(failed,)))
    assert "<pre>kernel.cu(3): error: a &lt; b</pre>" in text
    assert text.count('<tr class="failed">') == 1
    assert 'class="tile bad"' in text
    assert 'class="tile bad"' not in page(report(row("a")))


def test_spills_are_named() -> None:
    text = page(report(row("a"), row("b", spill_bytes=24)))
    assert "spills: b (24 B)" in text
    assert '<td class="number bad" data-v="24">24</td>' in text
    assert "nothing spills" in page(report(row("a")))


def test_verification_says_where_or_that_it_did_not_run() -> None:
    text = page(report(row("a"), row("b", verification="device:NVIDIA H200")))
    assert '<span class="pill none">not run here</span>' in text
    assert '<span class="pill verified">NVIDIA H200</span>' in text


def test_hundreds_of_rows_are_all_there() -> None:
    text = page(report(*(row(f"scale-hidden={n}-cuda-sm_90a") for n in range(400))))
    assert text.count('<td class="key"><code>') == 400
    assert (
        text.count("<title>scale-hidden=7-cuda-sm_90a\nlower 2.0 s, compile 7.0 s, link 1.0 s") == 3
    )
    assert len(text) < 1_500_000


def heights(image: str | None, kind: str) -> list[float]:
    assert image is not None
    return [float(n) for n in re.findall(rf'height="([\d.]+)" class="{kind}"', image)]


def test_registers_are_counted_in_bins_and_spills_stand_out() -> None:
    rows = [row("a", registers=33), row("b", registers=39), row("c", registers=255, spill_bytes=8)]
    image = plots.registers_plot([*rows, row("d", registers=None)])
    assert heights(image, "s1") == [180.0]
    assert heights(image, "bad") == [90.0]
    assert "32 to 39 registers: 2" in str(image)


def test_on_chip_plot_leaves_out_what_needs_none() -> None:
    rows = [row("a"), row("b", operator="plain", on_chip_bytes=0)]
    image = str(plots.on_chip_plot(rows))
    assert "1 of 227 KiB" in image
    assert "plain" not in image
    assert plots.on_chip_plot(rows[1:]) is None


def test_few_variants_are_named_in_the_plot_of_seconds() -> None:
    few = [row(f"scale-hidden={n}-cuda-sm_90a", lower_s=float(n)) for n in range(1, 25)]
    image = str(plots.seconds_plot(few))
    named = re.findall(r">(scale-hidden=\d+-cuda-sm_90a)</text>", image)
    assert (named[0], named[-1], len(named)) == (few[-1].key, few[0].key, 24)
    many = str(plots.seconds_plot([*few, row("one-more")]))
    assert f"25 variants, the slowest first; the slowest is {few[-1].key}" in many


def test_plots_of_nothing_are_left_out() -> None:
    bare = row("a", registers=None, lower_s=None, compile_s=None, link_s=None, worker=None)
    assert plots.seconds_plot([bare]) is None
    assert plots.registers_plot([bare]) is None
    assert plots.timeline_plot(lanes(report(bare))) is None
    assert plots.sizes_plot(by_operator(report())) is None
    assert "<figure" not in page(report())


def test_timeline_shows_what_failed() -> None:
    failed = FailedRow(
        key="b",
        operator="scale",
        backend="cuda",
        arch="sm_90a",
        machine="x86_64",
        message="",
        exit_code=6,
        worker="2",
        start_s=0.0,
        end_s=5.0,
    )
    image = str(plots.timeline_plot(lanes(report(row("a"), failures=(failed,)))))
    assert image.count('class="s1"') == image.count('class="bad"') == 1
    assert ">worker 2</text>" in image


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        (0.0, [0, 1]),
        (1e-320, [0, 1]),
        (10.0, [0, 2.5, 5, 7.5, 10]),
        (117.0, [0, 50, 100, 150]),
        (0.3, [0, 0.1, 0.2, 0.3]),
    ],
)
def test_ticks_are_round(top: float, expected: list[float]) -> None:
    assert plots.ticks(top) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("top_s", "step_s"), [(0.5, 0.1), (50.0, 5), (240.0, 30), (850.0, 120), (1e6, 1e6 / 12)]
)
def test_ticks_of_time_are_those_of_a_clock(top_s: float, step_s: float) -> None:
    found = plots.time_ticks(top_s)
    assert found[1] == pytest.approx(step_s)
    assert found[-1] >= top_s * 0.999
