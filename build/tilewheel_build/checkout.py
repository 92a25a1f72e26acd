"""Where this checkout is, its state, and its built artifacts: an entry point of the workspace."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def artifact_roots() -> list[Path]:
    """Return the directories of the artifacts that this checkout has built."""
    artifacts = ROOT / "out" / "artifacts"
    if not artifacts.is_dir():
        return []
    return sorted(path.parent for path in artifacts.glob("*/manifest.json"))


def source_state(root: Path) -> tuple[str | None, bool | None]:
    """Return the commit and whether tracked files differ from it; None where git knows neither."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *arguments],
                capture_output=True,
                text=True,
                check=False,
                env={
                    **os.environ,
                    "GIT_OPTIONAL_LOCKS": "0",
                    # A source tree without git, unpacked inside another repository, is not its.
                    "GIT_CEILING_DIRECTORIES": str(root.resolve().parent),
                },
            )
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None, None
    return commit, bool(git("status", "--porcelain", "--untracked-files=no"))
