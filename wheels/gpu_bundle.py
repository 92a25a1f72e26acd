"""``make gpu-bundle``: one folder with all that a GPU machine without network needs to test.

The folder holds wheels (the runtime, the CUDA artifacts that this checkout has built, tvm-ffi for
the machine's Python), tests, benchmarks and ``run.sh``. The machine has torch, pytest and pip.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import make_wheels
from distributions import ROOT
from tilewheel_build.host_compiler import MACHINES

SIZE_LIMIT_MB = 60.0

# torch_c_dlpack_ext gives tensors of torch before 2.13 tvm-ffi's fast path, prebuilt.
REQUIREMENTS = ("apache-tvm-ffi==0.1.12", "typing-extensions", "torch-c-dlpack-ext==0.1.5")

PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17")

RUN_SH = """\
#!/usr/bin/env bash
# Installs the wheels beside this file, then tests and benchmarks this machine's GPU.
#   run.sh [RESULTS] [test|bench|all]
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=$(mkdir -p "${1:-results}" && cd "${1:-results}" && pwd)
what=${2:-all}
python=${PYTHON:-python3}
export PYTHONDONTWRITEBYTECODE=1
# A folder of its own: the machine's environment, whose torch is used, stays as it is.
site=$here/site
rm -rf "$site"
"$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \\
  --find-links "$here/wheels" --target "$site" \\
  tilewheel tilewheel-cu13 apache-tvm-ffi typing-extensions torch-c-dlpack-ext || exit
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
status=0
cd "$here"
"$python" -m tilewheel env | tee "$results/env.txt"
"$python" -m tilewheel verify --hash | tee "$results/verify.txt"
code=${PIPESTATUS[0]}; [ "$code" -ne 0 ] && status=$code
if [ "$what" != bench ]; then
  "$python" -m tilewheel selftest --json > "$results/selftest.json" || status=$?
  "$python" -m pytest -q -c tests/pytest.ini tests -p no:cacheprovider \\
    -o junit_family=xunit2 --junitxml "$results/tests.xml" 2>&1 | tee "$results/tests.txt"
  code=${PIPESTATUS[0]}; [ "$code" -ne 0 ] && status=$code
fi
if [ "$what" != test ]; then
  "$python" bench/run.py --out "$results" 2>&1 | tee "$results/bench.txt"
  code=${PIPESTATUS[0]}; [ "$code" -ne 0 ] && status=$code
fi
exit "$status"
"""

PYTEST_INI = """\
[pytest]
addopts = -ra --strict-markers --import-mode=importlib
markers =
    gpu: needs an NVIDIA GPU and built CUDA artifacts
"""


def main(arguments: Sequence[str]) -> int:
    """Write the bundle and print its size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "out")
    parser.add_argument("--python", default="3.12", help="the GPU machine's Python")
    parser.add_argument("--machine", default=platform.machine(), choices=MACHINES)
    parser.add_argument("--limit-mb", type=float, default=SIZE_LIMIT_MB)
    options = parser.parse_args(arguments)
    bundle: Path = options.out.resolve() / "gpu-bundle"
    shutil.rmtree(bundle, ignore_errors=True)
    wheels = bundle / "wheels"
    code = make_wheels.main(
        [
            *("--ready", "--target", "cuda", "--machines", options.machine),
            *("--out", str(options.out), "--dist", str(wheels)),
        ]
    )
    if code:
        return code
    _download(wheels, options.python, options.machine)
    for name in ("gpu", "numerics"):
        _copy_tree(ROOT / "tests" / name, bundle / "tests" / name)
    shutil.copyfile(ROOT / "tests" / "conftest.py", bundle / "tests" / "conftest.py")
    (bundle / "tests" / "pytest.ini").write_text(PYTEST_INI)
    _copy_tree(ROOT / "bench", bundle / "bench")
    (bundle / "run.sh").write_text(RUN_SH)
    (bundle / "run.sh").chmod(0o755)
    size_bytes = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    print(f"{bundle}: {size_bytes / 1e6:.1f} MB")
    if size_bytes > options.limit_mb * 1e6:
        print(f"must be at most {options.limit_mb:g} MB, see --limit-mb", file=sys.stderr)
        return 7
    return 0


def _copy_tree(source: Path, target: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", "results", "*.pyc")
    shutil.copytree(source, target, ignore=ignore)


def _download(folder: Path, python: str, machine: str) -> None:
    platforms = [flag for name in PLATFORMS for flag in ("--platform", f"{name}_{machine}")]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--only-binary=:all:", "--implementation", "cp", "--python-version", python),
            *platforms,
            *("--dest", str(folder)),
            *REQUIREMENTS,
        ],
        check=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
