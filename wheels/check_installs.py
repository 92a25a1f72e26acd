"""Whether pip, with no network, takes wheels from a folder: for this processor and for others."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from distributions import FileName, parse_file_name
from tilewheel_build.host_compiler import GLIBC, MACHINES


def install_problems(files: Sequence[Path]) -> list[str]:
    """Install each wheel of one folder by its name, as a machine of its tag would.

    What they require is not in the folder; the smoke test installs with dependencies.
    """
    problems = []
    for path in files:
        if path.suffix != ".whl":
            continue
        try:
            name = parse_file_name(path.name)
        except ValueError:
            continue  # reported already
        for machine in [name.machine] if name.machine else MACHINES:
            error = _install(path, name, machine)
            if error:
                problems.append(f"{path.name}: pip does not install it on {machine}: {error}")
    return problems


def _install(path: Path, name: FileName, machine: str) -> str:
    with tempfile.TemporaryDirectory() as target:
        command = [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-index", "--find-links", str(path.parent), "--no-deps", "--only-binary=:all:"),
            *("--no-compile", "--target", target, f"{name.distribution.name}=={name.version}"),
        ]
        if machine != platform.machine():
            minor = int(GLIBC.partition(".")[2])
            # pip matches the platforms that are named, so the machine names all that it runs.
            for number in range(17, minor + 1):
                command += ["--platform", f"manylinux_2_{number}_{machine}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip()
        if not (Path(target) / name.distribution.package).is_dir():
            return f"it brings no {name.distribution.package}"
    return ""
