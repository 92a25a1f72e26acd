"""Artifacts for another processor: where they go, and what of them is compiled again."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

STAGE = "stage-hidden=16384-cuda-sm_90a"
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]
ELF_MACHINE = {"x86_64": 62, "aarch64": 183}[OTHER]


def built_for_other(checkout: Any, **variables: str) -> bytes:
    """Build one artifact for the other processor and return the file."""
    done = checkout.run("build", "--machine", OTHER, "--only", STAGE, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    path: Path = checkout.out / f"artifacts-{OTHER}" / "cuda" / "sm_90a" / f"{STAGE}.so"
    return path.read_bytes()


def test_device_code_is_taken_from_the_build_for_this_processor(copy: Any, built: Any) -> None:
    own = copy.published()
    # Without g++ on PATH nvcc cannot run: only the launcher is compiled.
    content = built_for_other(copy, PATH="")
    assert int.from_bytes(content[18:20], "little") == ELF_MACHINE
    assert copy.published() == own

    (copy.out.parent / "scratch" / "cache").mkdir(parents=True)
    scratch = replace(copy, out=copy.out.parent / "scratch")
    (scratch.out / "cache" / "zig").symlink_to(built.out / "cache" / "zig")
    assert built_for_other(scratch) == content


def test_verify_checks_the_artifacts_of_the_processor_that_is_named(copy: Any) -> None:
    built_for_other(copy)
    done = copy.run("verify", "--machine", OTHER)
    assert (done.returncode, done.stdout) == (0, "1 manifests, 0 problems\n"), done.stderr
    path = copy.out / f"artifacts-{OTHER}" / "cuda" / "manifest.json"
    tree = json.loads(path.read_text())
    tree["artifacts"][0]["toolchain"]["machine"] = platform.machine()
    path.write_text(json.dumps(tree))
    done = copy.run("verify", "--machine", OTHER)
    assert done.returncode == 7
    assert done.stderr.endswith(f", must be for {platform.machine()}\n")
