"""Which artifacts have run and been compared with the reference, by the hash of the very file.

``verified.json`` at the root of the checkout maps sha256 to ``device:<name>`` or ``simulator``. It
is written from the self-test of a run on that device; any change of an artifact drops it:

    python -m tilewheel_build.verified MANIFEST SELFTEST.json STATUS

SELFTEST.json is what ``tilewheel selftest --json`` printed where it ran.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tilewheel.manifest import read
from tilewheel_build.checkout import ROOT
from tilewheel_build.errors import ArtifactError

FILE_NAME = "verified.json"
NONE = "none"


def verification_status(root: Path, sha256: str) -> str:
    """Return ``none``, ``simulator`` or ``device:<name>`` for the artifact with this hash."""
    return _recorded(root).get(sha256, NONE)


@cache
def _recorded(root: Path) -> dict[str, str]:
    path = root / FILE_NAME
    if not path.is_file():
        return {}
    try:
        tree = json.loads(path.read_text())
    except ValueError as error:
        raise ArtifactError(f"{FILE_NAME}: is not readable JSON: {error}") from error
    if not isinstance(tree, dict):
        raise ArtifactError(f"{FILE_NAME}: is a {type(tree).__name__}, must be an object")
    return {str(sha256): str(status) for sha256, status in tree.items()}


def record(root: Path, *, manifest: Path, selftest: Path, status: str) -> int:
    """Note every artifact of the manifest that the self-test found exact; return how many.

    Entries of other artifacts stay; an artifact that failed loses its entry.
    """
    results = {row["key"]: row["status"] for row in json.loads(selftest.read_text())["rows"]}
    recorded = dict(_recorded(root))
    count = 0
    for artifact in read(manifest).artifacts:
        result = results.get(str(artifact.key), "skipped")
        if result == "exact":
            recorded[artifact.sha256] = status
            count += 1
        elif result != "skipped":
            recorded.pop(artifact.sha256, None)
    text = json.dumps(recorded, sort_keys=True, indent=1)
    (root / FILE_NAME).write_text(text + "\n")
    return count


def main(arguments: Sequence[str]) -> int:
    """Record one self-test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("selftest", type=Path)
    parser.add_argument("status", help="simulator, or device:<name>")
    options = parser.parse_args(arguments)
    count = record(
        ROOT, manifest=options.manifest, selftest=options.selftest, status=options.status
    )
    print(f"{count} artifacts are {options.status}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
