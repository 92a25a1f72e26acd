"""Writes every file that is made from the specs: ``python -m tilewheel_build.generate``.

These are the JSON Schema ``specs/schema.json``, the page ``docs/spec.md``, and the golden list of
keys ``tests/golden/<operator>.txt`` of each operator. A house test compares them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tilewheel_build.schema import COMMAND, EXAMPLE, schema_json, spec_markdown
from tilewheel_build.spec import KNOWN_ARCHS, OperatorSpec, SpecError, load_specs
from tilewheel_build.variant import expand

GOLDEN_FOLDER = "tests/golden"
SCHEMA_FILE = "specs/schema.json"
PAGE_FILE = "docs/spec.md"


def golden_keys(spec: OperatorSpec) -> str:
    """Return every key that a spec yields, for every backend and architecture, one a line."""
    variants = [variant for backend in KNOWN_ARCHS for variant in expand(spec, backend)]
    return "".join(f"{variant.key}\n" for variant in variants)


def generated_files(root: Path) -> dict[str, str]:
    """Return the text of each generated file by its path relative to the repository ``root``.

    Raises:
        SpecError: a spec is not valid.
    """
    specs = load_specs(root)
    files = {
        SCHEMA_FILE: schema_json(),
        PAGE_FILE: spec_markdown((root / EXAMPLE).read_text(encoding="utf-8")),
    }
    for spec in specs:
        files[f"{GOLDEN_FOLDER}/{spec.operator}.txt"] = golden_keys(spec)
    return files


def stale_files(root: Path) -> tuple[str, ...]:
    """Return the generated files that differ from what they should be, or should not exist."""
    files = generated_files(root)
    differing = {path for path, text in files.items() if _read(root / path) != text}
    golden = {path.relative_to(root).as_posix() for path in (root / GOLDEN_FOLDER).glob("*.txt")}
    return tuple(sorted(differing | (golden - set(files))))


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files and name those that changed; golden lists without a spec are removed."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the repository")
    root = parser.parse_args(arguments).root
    try:
        stale = stale_files(root)
        files = generated_files(root)
    except SpecError as error:
        print(error, file=sys.stderr)
        return 2
    for path in stale:
        target = root / path
        if path in files:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(files[path], encoding="utf-8", newline="\n")
        else:
            target.unlink()
        print(f"{'wrote' if path in files else 'removed'} {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
