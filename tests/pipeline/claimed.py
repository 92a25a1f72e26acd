"""Tensors that claim to lie on a device: a launcher reads their description, never their data."""

from __future__ import annotations

import ctypes
from typing import Any

CPU, CUDA = 1, 2

_CODES = {
    "int32": (0, 32, 1),
    "int64": (0, 64, 1),
    "float32": (2, 32, 1),
    "float16": (2, 16, 1),
    "float32x4": (2, 32, 4),
    "bfloat16": (4, 16, 1),
    "float8_e4m3fn": (10, 8, 1),
}


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("index", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_alive: list[Any] = []
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def claimed(
    *shape: int,
    dtype: str = "float32",
    strides: tuple[int, ...] | None = None,
    device: tuple[int, int] = (CUDA, 0),
    data: int = 0x10000,
    byte_offset: int = 0,
) -> Any:
    """Return a ``tvm_ffi.Tensor`` with this description; no strides means a DLPack NULL."""
    import tvm_ffi

    sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    steps = None if strides is None else (ctypes.c_int64 * max(1, len(strides)))(*strides)
    managed = _Managed()
    managed.tensor.data = data
    managed.tensor.device = _Device(*device)
    managed.tensor.ndim = len(shape)
    managed.tensor.dtype = _DataType(*_CODES[dtype])
    managed.tensor.shape = sizes
    if steps is not None:
        managed.tensor.strides = steps
    managed.tensor.byte_offset = byte_offset
    _alive.extend((sizes, steps, managed))
    return tvm_ffi.from_dlpack(_new_capsule(ctypes.addressof(managed), b"dltensor", None))
