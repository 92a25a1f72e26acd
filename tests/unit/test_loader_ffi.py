"""The import of tvm_ffi never starts a compiler and never writes."""

from __future__ import annotations

from pathlib import Path

import tilewheel

RUNTIME = Path(tilewheel.__file__).parents[1]

# torch as it was before it had the exchange interface, and without the prebuilt helper: the case
# in which tvm_ffi compiles one. An audit hook reports every process start.
SCRIPT = """
import os, sys
import torch

if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    del torch.Tensor.__dlpack_c_exchange_api__
sys.modules["torch_c_dlpack_ext"] = None
started = []
STARTS = ("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec")
sys.addaudithook(lambda event, _: started.append(event) if event in STARTS else None)
from tilewheel.ffi import tvm_ffi
module = tvm_ffi()
assert callable(module.load_module)
assert tvm_ffi() is module
assert not started, started
assert os.environ.get("TVM_FFI_DISABLE_TORCH_C_DLPACK") == "0"
"""


def test_import_starts_no_compiler_and_restores_the_environment(run_script, tmp_path):
    run_script(
        SCRIPT,
        PYTHONPATH=str(RUNTIME),
        TVM_FFI_CACHE_DIR=str(tmp_path / "cache"),
        TVM_FFI_DISABLE_TORCH_C_DLPACK="0",
        HOME="/nonexistent",
    )
    assert not (tmp_path / "cache").exists()
