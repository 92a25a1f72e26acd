"""The page of a build report in a real browser, where Chromium is installed."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewheel_build.report import FailedRow, Report, Row, Run
from tilewheel_build.report_page import page

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
    # distributed brings it; it has the client of the protocol that Chromium is spoken to with.
    pytest.mark.skipif(importlib.util.find_spec("tornado") is None, reason="needs tornado"),
]

HOSTILE = "</script><script>window.taken = 1</script><img src=x onerror='window.taken = 1'>"


def row(number: int, **fields: Any) -> Row:
    plain = Row(
        key=f"scale-hidden={number}-cuda-sm_90a",
        operator="scale",
        backend="cuda",
        arch="sm_90a",
        machine="x86_64",
        sha256="a" * 64,
        size_bytes=1024 * number,
        source="built",
        verification="none",
        registers=32,
        lower_s=float(number % 7),
        compile_s=2.0,
        worker=str(number % 2),
        start_s=float(number),
        end_s=number + 2.0,
    )
    return replace(plain, **fields)


REPORT = Report(
    command="build",
    tilewheel_version="0.1.0",
    source_commit=None,
    source_dirty=None,
    runs=(Run(machine="x86_64", shard=None, wall_s=9.0),),
    artifacts=(*map(row, range(1, 301)), row(301, key=HOSTILE, registers=None, source="local")),
    failures=(
        FailedRow(
            key=HOSTILE,
            operator=HOSTILE,
            backend="cuda",
            arch="sm_90a",
            machine="x86_64",
            message=HOSTILE,
            exit_code=6,
        ),
    ),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with the page, beside a browser that runs."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "report.html").write_text(page(REPORT))
    command = [
        *(str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu"),
        *("--remote-debugging-port=0", f"--user-data-dir={folder / 'profile'}", "about:blank"),
    ]
    with (folder / "log.txt").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            deadline = time.monotonic() + 60
            while not (folder / "profile" / "DevToolsActivePort").exists():
                assert time.monotonic() < deadline, (folder / "log.txt").read_text()
                time.sleep(0.1)
            yield folder
        finally:
            process.terminate()


@pytest.fixture
def visit(place: Path) -> Callable[..., list[Any]]:
    """Return the function that opens the page, evaluates scripts in it, and gives their values."""

    def run(*scripts: str, width: int = 1200, scheme: str = "light") -> list[Any]:
        return asyncio.run(_visit(place, scripts, width, scheme))

    return run


async def _visit(place: Path, scripts: tuple[str, ...], width: int, scheme: str) -> list[Any]:
    from tornado.websocket import websocket_connect

    port, path = (place / "profile" / "DevToolsActivePort").read_text().split()
    browser = await websocket_connect(f"ws://127.0.0.1:{port}{path}", max_message_size=1 << 28)
    number = 0
    requests: list[str] = []

    async def call(method: str, session: str | None = None, **parameters: Any) -> Any:
        nonlocal number
        number += 1
        message = {"id": number, "method": method, "params": parameters}
        await browser.write_message(
            json.dumps(message if session is None else {**message, "sessionId": session})
        )
        while True:
            answer = json.loads(str(await browser.read_message()))
            if answer.get("method") == "Network.requestWillBeSent":
                requests.append(answer["params"]["request"]["url"])
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    target = (await call("Target.createTarget", url="about:blank"))["targetId"]
    session = (await call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
    await call("Network.enable", session)
    scheme_feature = {"name": "prefers-color-scheme", "value": scheme}
    await call("Emulation.setEmulatedMedia", session, features=[scheme_feature])
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    await call("Emulation.setDeviceMetricsOverride", session, **size)
    url = (place / "report.html").as_uri()
    await call("Page.navigate", session, url=url)
    values = []
    for script in ("new Promise(done => setTimeout(done, 300))", *scripts):
        parameters = {"expression": script, "awaitPromise": True, "returnByValue": True}
        result = await call("Runtime.evaluate", session, **parameters)
        assert "exceptionDetails" not in result, result
        values.append(result["result"].get("value"))
    await call("Target.closeTarget", targetId=target)
    browser.close()
    assert requests == [url]
    return values[1:]


FIRST = "document.querySelector('#artifacts tbody tr td').textContent"
SHOWN = "[...document.querySelectorAll('#artifacts tbody tr')].filter(row => !row.hidden).length"


def click(title: str) -> str:
    return (
        "[...document.querySelectorAll('#artifacts th button')]"
        f".find(button => button.textContent === {title!r}).click()"
    )


def write(words: str) -> str:
    return (
        "(() => { const input = document.querySelector('.filter input');"
        f" input.value = {words!r}; input.dispatchEvent(new Event('input')); }})()"
    )


def test_hostile_texts_run_nothing_and_are_shown(visit: Callable[..., list[Any]]) -> None:
    taken, num_scripts, num_images, message = visit(
        "window.taken === undefined",
        "document.scripts.length",
        "document.images.length",
        "document.querySelector('.failures pre').textContent",
    )
    assert (taken, num_scripts, num_images, message) == (True, 1, 0, HOSTILE)


def test_policy_lets_no_other_script_run(visit: Callable[..., list[Any]]) -> None:
    add = (
        "(() => { const s = document.createElement('script'); s.textContent = 'window.taken = 1';"
        " document.body.append(s); })()"
    )
    assert visit(add, "window.taken === undefined") == [None, True]


def test_columns_sort_and_what_is_unknown_comes_last(visit: Callable[..., list[Any]]) -> None:
    last = FIRST.replace("tr td", "tr:last-child td")
    values = visit(click("KiB"), FIRST, click("KiB"), last, click("registers"), last)
    assert values == [None, HOSTILE, None, HOSTILE, None, HOSTILE]
    # Numbers inside names count as numbers.
    assert visit(write("scale"), click("key"), click("key"), FIRST)[-1] == row(300).key


def test_words_filter_the_artifacts(visit: Callable[..., list[Any]]) -> None:
    count = "document.querySelector('.count').textContent"
    values = visit(SHOWN, count, write("compiled hidden=30"), SHOWN, count, write(""), SHOWN)
    assert values == [302, "302", None, 2, "2 of 302", None, 302]


@pytest.mark.parametrize("width", [400, 800, 1600])
def test_page_is_never_wider_than_the_window(visit: Callable[..., list[Any]], width: int) -> None:
    (inside,) = visit("document.documentElement.scrollWidth", width=width)
    assert inside <= width


def test_colours_follow_the_scheme(visit: Callable[..., list[Any]]) -> None:
    colours = "(style => [style.backgroundColor, style.color])(getComputedStyle(document.body))"
    assert visit(colours) == [["rgb(246, 246, 244)", "rgb(27, 27, 25)"]]
    assert visit(colours, scheme="dark") == [["rgb(19, 19, 18)", "rgb(236, 235, 230)"]]
