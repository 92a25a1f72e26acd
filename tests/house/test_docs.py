"""Every code block of the documentation runs, and every name that it mentions exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("wheels/*/*.md")])


def blocks(language: str) -> list[tuple[Path, str]]:
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [(page, text) for page in PAGES for text in pattern.findall(page.read_text())]


def commands() -> list[tuple[Path, str]]:
    lines = [
        (page, line.partition("#")[0].strip())
        for page, text in blocks("sh")
        for line in text.splitlines()
    ]
    return [(page, line) for page, line in lines if line]


def ids(found: list[tuple[Path, str]]) -> list[str]:
    return [f"{page.relative_to(ROOT)}: {text.strip().splitlines()[0]}" for page, text in found]


@pytest.mark.parametrize(("page", "text"), blocks("python"), ids=ids(blocks("python")))
def test_python_blocks_run(page: Path, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("page", "line"), commands(), ids=ids(commands()))
def test_shell_lines_run_or_name_a_make_target(page: Path, line: str) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        # Running them from a test would recurse; what can go stale is the name.
        targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets
        return
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_of_the_project_resolve(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert missing == []
