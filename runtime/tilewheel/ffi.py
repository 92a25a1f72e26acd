"""The import of tvm_ffi, made safe: it may never start a compiler.

Where ``torch.Tensor`` has no DLPack exchange interface, importing tvm_ffi compiles a helper with
the machine's C++ compiler into the user's cache. The prebuilt helper of ``torch_c_dlpack_ext`` is
used instead where it is installed; without it tensors take the slower DLPack protocol.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from tilewheel.log import logger

_SWITCH = "TVM_FFI_DISABLE_TORCH_C_DLPACK"
_BUILDER = "tvm_ffi._optional_torch_c_dlpack"
# The attribute's name in the first releases of tvm_ffi 0.1, and its name since.
_OLD_ATTRIBUTE = "__c_dlpack_exchange_api__"
_ATTRIBUTE = "__dlpack_c_exchange_api__"


def tvm_ffi() -> Any:
    """Return the module ``tvm_ffi``, importing it without its compiler step."""
    if "tvm_ffi" in sys.modules:
        import tvm_ffi

        return tvm_ffi
    tensor = _tensor_type()
    if tensor is None or hasattr(tensor, _OLD_ATTRIBUTE):
        import tvm_ffi

        return tvm_ffi
    return _import_without_builder()


def _tensor_type() -> type | None:
    """Return ``torch.Tensor`` with an exchange interface where one can be had, None if no torch."""
    try:
        import torch
    except ImportError:
        return None
    tensor: type = torch.Tensor
    if not hasattr(tensor, _ATTRIBUTE) and not hasattr(tensor, _OLD_ATTRIBUTE):
        try:
            import torch_c_dlpack_ext  # noqa: F401 - sets the attribute
        except Exception as error:  # a build for another torch fails in its own ways
            logger.info(
                "torch %s has no DLPack exchange interface and torch_c_dlpack_ext does not give "
                "it (%s): calls take the slower DLPack protocol",
                torch.__version__,
                error,
            )
    return tensor


def _import_without_builder() -> Any:
    # Later releases read the switch. An empty module in the builder's place also serves 0.1.0,
    # which has no switch and does not know the attribute's present name.
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "1"
    sys.modules.setdefault(_BUILDER, ModuleType(_BUILDER))
    try:
        import tvm_ffi

        return tvm_ffi
    finally:
        if before is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before
