"""Which artifacts have run and been compared with the reference, by the hash of the very file.

``verified.json`` at the root of the checkout maps sha256 to ``device:<name>`` or ``simulator``. It
is written from the report of a test run on that device; any change of an artifact drops it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

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
