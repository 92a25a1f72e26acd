"""Hand-made artifacts: manifests in a temporary directory, and one small real shared object."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tilewheel
from tilewheel import discovery, dispatch
from tilewheel.discovery import Catalog, Entry
from tilewheel.families import FAMILIES
from tilewheel.key import Key
from tilewheel.manifest import (
    RUNTIME_ABI,
    SCHEMA_VERSION,
    Argument,
    Artifact,
    Launch,
    Manifest,
    Resources,
    dump,
)

# Test files import what they share, which is no test, from this folder by name.
sys.path.insert(0, str(Path(__file__).parent))

# An entry function that computes topk_gate on the host. With -DWRONG it writes zeros. A third
# argument, the device's, is written to idx[0, 0]. `prepare` of device 7 fails.
TOPK_GATE_C = r"""
#include <math.h>
#include <tvm/ffi/c_api.h>

static DLTensor *tensor(const TVMFFIAny *arg) {
  if (arg->type_index == kTVMFFIDLTensorPtr) return (DLTensor *)arg->v_ptr;
  if (arg->type_index != kTVMFFITensor) return NULL;
  return (DLTensor *)((char *)arg->v_obj + sizeof(TVMFFIObject));
}

int __tvm_ffi_topk_gate(void *self, const TVMFFIAny *args, int32_t num_args, TVMFFIAny *result) {
  DLTensor *scores = tensor(&args[0]), *idx = num_args > 1 ? tensor(&args[1]) : NULL;
  if (!scores || !idx) {
    TVMFFIErrorSetRaisedFromCStr("TypeError", "topk_gate: scores: must be a tensor");
    return -1;
  }
  int64_t num_tokens = scores->shape[0], num_experts = scores->shape[1], num_topk = idx->shape[1];
  for (int64_t t = 0; t < num_tokens; ++t) {
    const float *row = (const float *)scores->data + t * num_experts;
    int64_t *out = (int64_t *)idx->data + t * num_topk;
    int finite = 1;
    for (int64_t e = 0; e < num_experts; ++e) finite &= isfinite(row[e]) != 0;
    for (int64_t k = 0; k < num_topk; ++k) {
      int64_t best = -1;
      for (int64_t e = 0; e < num_experts && finite; ++e) {
        int taken = 0;
        for (int64_t j = 0; j < k; ++j) taken |= out[j] == e;
        if (!taken && (best < 0 || row[e] > row[best])) best = e;
      }
      out[k] = best;
    }
  }
#ifdef WRONG
  if (num_tokens) *(int64_t *)idx->data = 12345;
#endif
  if (num_args == 3) *(int64_t *)idx->data = args[2].v_int64;
  result->type_index = kTVMFFINone;
  return 0;
}

int __tvm_ffi_prepare(void *self, const TVMFFIAny *args, int32_t num_args, TVMFFIAny *result) {
  if (args[0].v_int64 == 7) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", "no CUDA driver");
    return -1;
  }
  result->type_index = kTVMFFINone;
  return 0;
}
"""


def make_artifact(key: str, **changes: Any) -> Artifact:
    parsed = Key.parse(key)
    values: dict[str, Any] = {
        "key": parsed,
        "path": f"{parsed.target.arch}/{key}.so",
        "sha256": "0" * 64,
        "size_bytes": 1,
        "entry": f"__tvm_ffi_{parsed.operator}",
        "arguments": (
            Argument(name="scores", kind="tensor", dtype="float32"),
            Argument(name="idx", kind="tensor", dtype="int64", role="out"),
        ),
        "launch": Launch(
            kernel="kernel", parameters=(), grid=(), block=(), dynamic_shared_bytes=0, pdl=False
        ),
        "limits": (),
        "resources": Resources(),
        "minimum_driver": "580" if parsed.target.backend == "cuda" else "",
        "toolchain": (("tilelang", "0.1.15"),),
        "fingerprint": "f",
        "profiles": ("dev",),
        "verification": "none",
    }
    return Artifact(**{**values, **changes})


def make_manifest(*artifacts: Artifact, **changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "tilewheel_version": "0.1.0",
        "runtime_abi": RUNTIME_ABI,
        "backend": "cuda",
        "source_commit": None,
        "source_dirty": None,
        "artifacts": artifacts,
    }
    return Manifest(**{**values, **changes})


@pytest.fixture
def artifact() -> Callable[..., Artifact]:
    """Return the function that makes an artifact's description from its key."""
    return make_artifact


@pytest.fixture
def manifest() -> Callable[..., Manifest]:
    """Return the function that makes a manifest from descriptions."""
    return make_manifest


@pytest.fixture
def catalog() -> Callable[..., Catalog]:
    """Return the function that makes a catalogue from keys or descriptions, without files."""

    def make(*artifacts: str | Artifact, overlay: bool = False) -> Catalog:
        described = [a if isinstance(a, Artifact) else make_artifact(a) for a in artifacts]
        return Catalog(
            entries=tuple(
                Entry(artifact=a, root=Path("/artifacts"), source="test 1.0", is_overlay=overlay)
                for a in described
            )
        )

    return make


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return the function that compiles C to a shared object, once for each source and flags."""
    if shutil.which("gcc"):
        compiler = ["gcc"]
    elif importlib.util.find_spec("ziglang"):
        compiler = [sys.executable, "-m", "ziglang", "cc"]
    else:
        pytest.skip("no C compiler")
    directory = tmp_path_factory.mktemp("objects")
    built: dict[tuple[str, ...], Path] = {}

    def build(source: str, *flags: str) -> Path:
        key = (source, *flags)
        if key not in built:
            stem = directory / f"object{len(built)}"
            stem.with_suffix(".c").write_text(source)
            command = [*compiler, "-shared", "-fPIC", "-O1", *flags]
            command += ["-o", str(stem.with_suffix(".so")), str(stem.with_suffix(".c"))]
            subprocess.run(command, check=True)
            built[key] = stem.with_suffix(".so")
        return built[key]

    return build


@pytest.fixture(scope="session")
def build_object(compile_c: Callable[..., Path]) -> Callable[..., Path]:
    """Return the function that compiles ``TOPK_GATE_C``."""
    from tilewheel.ffi import tvm_ffi

    tvm_ffi()
    from tvm_ffi import libinfo

    includes = [f"-I{path}" for path in libinfo.include_paths()]
    return lambda *flags: compile_c(TOPK_GATE_C, *includes, *flags)


@pytest.fixture
def install(build_object: Callable[..., Path]) -> Callable[..., Artifact]:
    """Return the function that puts a real artifact and its manifest into a directory."""

    def put(root: Path, key: str, *flags: str, **changes: Any) -> Artifact:
        content = build_object(*flags).read_bytes()
        described = make_artifact(
            key,
            sha256=hashlib.sha256(content).hexdigest(),
            size_bytes=len(content),
            **changes,
        )
        path = root / described.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        (root / "manifest.json").write_text(dump(make_manifest(described)))
        return described

    return put


@pytest.fixture
def overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make an empty directory the only source of artifacts for the public functions."""
    root = tmp_path / "overlay"
    root.mkdir()
    monkeypatch.setenv(discovery.VARIABLE, str(root))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    tilewheel.refresh()
    yield root
    tilewheel.refresh()


class Loaded(dict):
    """A table of functions in which everything is loaded; it keeps what is launched."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[tuple[object, ...]] = []

    @property
    def num_launches(self) -> int:
        return len(self.launches)

    def get(self, key: object, default: object = None) -> object:
        return self._launch

    def _launch(self, *arguments: object) -> None:
        self.launches.append(arguments)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """Make every artifact one that is loaded already, so that fast paths are taken."""
    for family in FAMILIES:
        importlib.import_module(f"tilewheel.{family}")
    table = Loaded()
    for name, module in list(sys.modules.items()):
        takes_it = getattr(module, "bound", None) is dispatch.bound
        if takes_it and name.startswith("tilewheel.") and module is not dispatch:
            monkeypatch.setattr(module, "bound", table)
    monkeypatch.setattr(dispatch, "bound", table)
    return table


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """Make every artifact one that the first call of an operator finds."""
    table = Loaded()
    monkeypatch.setattr(dispatch, "bound", table)
    return table
