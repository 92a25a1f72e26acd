"""Where this checkout is, and its built artifacts: an entry point of the workspace."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def artifact_roots() -> list[Path]:
    """Return the directories of the artifacts that this checkout has built."""
    artifacts = ROOT / "out" / "artifacts"
    if not artifacts.is_dir():
        return []
    return sorted(path.parent for path in artifacts.glob("*/manifest.json"))
