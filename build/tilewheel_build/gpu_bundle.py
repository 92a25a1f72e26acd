"""``make gpu-bundle``: one folder with all that a GPU machine without network needs to test.

The folder holds the runtime, tvm-ffi for the machine's Python, built artifacts, tests, benchmarks
and ``run.sh``. torch and pytest come from the machine.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tilewheel.manifest import FILE_NAME, read
from tilewheel_build.checkout import ROOT
from tilewheel_build.process import run_tool

SIZE_LIMIT_BYTES = 60 * 10**6

# torch_c_dlpack_ext gives tensors of torch before 2.13 tvm-ffi's fast path, prebuilt.
WHEELS = ("apache-tvm-ffi==0.1.12", "typing-extensions", "torch-c-dlpack-ext==0.1.5")

PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17")

RUN_SH = """\
#!/usr/bin/env bash
# Tests and benchmarks on this machine's GPU. Results go to the folder given, or to ./results.
#   run.sh [RESULTS] [test|bench|all]
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=$(mkdir -p "${1:-results}" && cd "${1:-results}" && pwd)
what=${2:-all}
export PYTHONPATH="$here/site${PYTHONPATH:+:$PYTHONPATH}"
export TILEWHEEL_ARTIFACTS="$here/artifacts"
export PYTHONDONTWRITEBYTECODE=1
status=0
cd "$here"
python3 -m tilewheel env | tee "$results/env.txt"
if [ "$what" != bench ]; then
  python3 -m tilewheel selftest --json > "$results/selftest.json" || status=$?
  python3 -m pytest -q -c tests/pytest.ini tests -p no:cacheprovider \\
    -o junit_family=xunit2 --junitxml "$results/tests.xml" 2>&1 | tee "$results/tests.txt"
  code=${PIPESTATUS[0]}; [ "$code" -ne 0 ] && status=$code
fi
if [ "$what" != test ]; then
  for name in kernel_time host_time cold_start; do
    python3 "bench/$name.py" "$results/$name.jsonl" 2>&1 | tee "$results/$name.txt"
    code=${PIPESTATUS[0]}; [ "$code" -ne 0 ] && status=$code
  done
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
    parser.add_argument("--machine", default="x86_64", help="the GPU machine's processor")
    options = parser.parse_args(arguments)
    bundle: Path = options.out.resolve() / "gpu-bundle"
    artifacts: Path = options.out.resolve() / "artifacts" / "cuda"
    if not (artifacts / FILE_NAME).is_file():
        print(f"{artifacts}: has no manifest\nhint: run `make build TARGET=cuda`", file=sys.stderr)
        return 3
    shutil.rmtree(bundle, ignore_errors=True)
    (bundle / "site").mkdir(parents=True)
    _copy_tree(ROOT / "runtime" / "tilewheel", bundle / "site" / "tilewheel")
    _copy_wheels(bundle, options.python, options.machine)
    _copy_artifacts(artifacts, bundle / "artifacts" / "cuda")
    for name in ("gpu", "numerics"):
        _copy_tree(ROOT / "tests" / name, bundle / "tests" / name)
    shutil.copyfile(ROOT / "tests" / "conftest.py", bundle / "tests" / "conftest.py")
    (bundle / "tests" / "pytest.ini").write_text(PYTEST_INI)
    _copy_tree(ROOT / "bench", bundle / "bench")
    (bundle / "run.sh").write_text(RUN_SH)
    (bundle / "run.sh").chmod(0o755)
    size_bytes = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    print(f"{bundle}: {size_bytes / 1e6:.1f} MB")
    if size_bytes > SIZE_LIMIT_BYTES:
        print(f"must be at most {SIZE_LIMIT_BYTES / 1e6:.0f} MB", file=sys.stderr)
        return 7
    return 0


def _copy_tree(source: Path, target: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", "results", "*.pyc")
    shutil.copytree(source, target, ignore=ignore)


def _copy_artifacts(source: Path, target: Path) -> None:
    """Copy the manifest and the files that it lists, and nothing else."""
    target.mkdir(parents=True)
    shutil.copyfile(source / FILE_NAME, target / FILE_NAME)
    for artifact in read(source / FILE_NAME).artifacts:
        (target / artifact.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / artifact.path, target / artifact.path)


def _copy_wheels(bundle: Path, python: str, machine: str) -> None:
    folder = bundle / "wheels"
    folder.mkdir()
    platforms = [flag for name in PLATFORMS for flag in ("--platform", f"{name}_{machine}")]
    run_tool(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--only-binary=:all:", "--implementation", "cp", "--python-version", python),
            *platforms,
            *("--dest", str(folder)),
            *WHEELS,
        ],
        cwd=bundle,
    )
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(bundle / "site")
    shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
