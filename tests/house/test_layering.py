"""Who imports whom, and what importing the runtime does not do."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewheel.families import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "runtime" / "tilewheel"
KERNELS = ROOT / "kernels" / "tilewheel_kernels"
BUILD = ROOT / "build" / "tilewheel_build"

# Modules that are imported only once an operator is used, and may import torch at their top.
LAZY_MODULES = {"checks.py", "modeling.py", "torch_ops.py"} | {
    f"{folder}{family}.py" for family in FAMILIES for folder in ("", "reference/")
}
LAZY_FOLDERS = ("selftest_cases/", *(f"{family}/" for family in FAMILIES))

# What the build driver takes from the runtime: the formats that the reader owns, the version, and
# what is installed.
SHARED = {
    "tilewheel.discovery",
    "tilewheel.errors",
    "tilewheel.key",
    "tilewheel.manifest",
    "tilewheel.version",
}


def imports(path: Path, *, top_only: bool = False) -> set[str]:
    """Return the modules that a file imports; with ``top_only`` those imported with it."""
    tree = ast.parse(path.read_text(), filename=str(path))
    nodes: list[ast.AST] = list(ast.walk(tree))
    if top_only:
        nodes = [node for statement in tree.body for node in _at_import(statement)]
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: has a relative import, must be absolute"
            module = str(node.module)
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= names if module in ("tilewheel", "tilewheel_build") else {module}
    return found


def _at_import(statement: ast.stmt) -> list[ast.AST]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return []
    if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
        return []
    return list(ast.walk(statement))


def packages(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def sources(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py"))


def test_runtime_imports_no_compiler_and_no_build_tool():
    for path in sources(RUNTIME):
        forbidden = {"tilelang", "tvm", "tilewheel_build", "tilewheel_kernels", "yaml", "jinja2"}
        assert not packages(imports(path)) & forbidden, path


def test_runtime_imports_torch_only_in_functions_and_lazy_modules():
    for path in sources(RUNTIME):
        name = path.relative_to(RUNTIME).as_posix()
        if name not in LAZY_MODULES and not name.startswith(LAZY_FOLDERS):
            heavy = {"torch", "tvm_ffi", "torch_npu", "torch_c_dlpack_ext", "numpy"}
            assert not packages(imports(path, top_only=True)) & heavy, path


def test_runtime_needs_nothing_but_torch_and_tvm_ffi():
    allowed = {"tilewheel", "torch", "tvm_ffi", "torch_npu", "torch_c_dlpack_ext"}
    for path in sources(RUNTIME):
        assert packages(imports(path)) <= allowed | set(sys.stdlib_module_names), path


def test_kernels_import_only_tilelang_and_themselves():
    allowed = {"tilelang", "tvm", "tilewheel_kernels"} | set(sys.stdlib_module_names)
    for path in sources(KERNELS):
        assert packages(imports(path)) <= allowed, path


def test_build_imports_only_what_is_shared_from_the_runtime():
    for path in sources(BUILD):
        taken = {name for name in imports(path) if packages({name}) == {"tilewheel"}}
        assert taken <= SHARED, path


def test_top_level_directories_are_no_packages():
    for directory in ROOT.iterdir():
        if directory.is_dir() and not directory.name.startswith("."):
            assert not (directory / "__init__.py").exists(), directory
            assert not (directory / "__main__.py").exists(), directory


@pytest.mark.parametrize("module", ["tilewheel", "tilewheel.cli"])
def test_import_is_light(module):
    script = f"""
import sys
events = []
watched = ("subprocess.Popen", "os.system", "os.posix_spawn", "os.fork", "socket.connect")
sys.addaudithook(lambda event, _: events.append(event) if event in watched else None)
writes = []
def watch_writes(event, args):
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        writes.append(args[0])
sys.addaudithook(watch_writes)
sys.dont_write_bytecode = True
import {module}
heavy = {{"torch", "tvm_ffi", "numpy", "yaml"}} & set(sys.modules)
assert not heavy, heavy
assert not events, events
assert not writes, writes
"""
    subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(RUNTIME.parent), "HOME": "/nonexistent"},
        check=True,
    )


def test_operators_do_not_import_the_compiler_of_torch():
    script = """
import sys, torch
before = set(sys.modules)
import tilewheel
from tilewheel.families import FAMILIES
for family in FAMILIES:
    getattr(tilewheel, family)
new = set(sys.modules) - before
assert "torch._dynamo" not in new and "torch._inductor" not in new, sorted(new)
"""
    environment = {**os.environ, "PYTHONPATH": str(RUNTIME.parent)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
