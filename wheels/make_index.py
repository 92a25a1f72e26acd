"""``make index``: a PEP 503 index of the wheels in a folder, to be served as plain files.

`pip install --index-url file:///.../dist/simple tilewheel` works as well as a web server's address.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from distributions import ROOT, parse_file_name

FOLDER = "simple"
REQUIRES_PYTHON = html.escape(">=3.10")


def main(arguments: Sequence[str]) -> int:
    """Write the index below the folder, in place of an older one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", nargs="?", type=Path, default=ROOT / "dist")
    dist: Path = parser.parse_args(arguments).dist.resolve()
    projects: dict[str, list[Path]] = {}
    for path in sorted([*dist.glob("*.whl"), *dist.glob("*.tar.gz")]):
        try:
            projects.setdefault(parse_file_name(path.name).distribution.name, []).append(path)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
    if not projects:
        print(f"{dist}: has no wheel and no sdist\nhint: run `make wheel`", file=sys.stderr)
        return 3
    index = dist / FOLDER
    shutil.rmtree(index, ignore_errors=True)
    index.mkdir()
    names = sorted(projects)
    (index / "index.html").write_text(_page([f'<a href="{name}/">{name}</a>' for name in names]))
    for name, files in projects.items():
        (index / name).mkdir()
        (index / name / "index.html").write_text(_page([_link(path) for path in files]))
    print(f"{index}: {len(projects)} projects, {sum(map(len, projects.values()))} files")
    return 0


def _link(path: Path) -> str:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return (
        f'<a href="../../{path.name}#sha256={digest}" '
        f'data-requires-python="{REQUIRES_PYTHON}">{path.name}</a>'
    )


def _page(links: Sequence[str]) -> str:
    body = "".join(f"{link}<br>\n" for link in links)
    head = '<meta name="pypi:repository-version" content="1.0">'
    return f"<!DOCTYPE html>\n<html><head>{head}</head><body>\n{body}</body></html>\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
