"""Data types by name: their DLPack code, bits and lanes, and the C type of a scalar argument."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DType:
    """A data type as DLPack describes it. ``c_type`` is empty where it cannot be a scalar."""

    code: str
    bits: int
    lanes: int = 1
    c_type: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of one element."""
        return self.bits * self.lanes // 8


DTYPES: dict[str, DType] = {
    "bool": DType(code="kDLBool", bits=8, c_type="bool"),
    "int8": DType(code="kDLInt", bits=8, c_type="int8_t"),
    "int16": DType(code="kDLInt", bits=16, c_type="int16_t"),
    "int32": DType(code="kDLInt", bits=32, c_type="int32_t"),
    "int64": DType(code="kDLInt", bits=64, c_type="int64_t"),
    "uint8": DType(code="kDLUInt", bits=8, c_type="uint8_t"),
    "uint32": DType(code="kDLUInt", bits=32, c_type="uint32_t"),
    "uint64": DType(code="kDLUInt", bits=64, c_type="uint64_t"),
    "float16": DType(code="kDLFloat", bits=16),
    "float32": DType(code="kDLFloat", bits=32, c_type="float"),
    "float64": DType(code="kDLFloat", bits=64, c_type="double"),
    "bfloat16": DType(code="kDLBfloat", bits=16),
    "float8_e4m3fn": DType(code="kDLFloat8_e4m3fn", bits=8),
    "float8_e5m2": DType(code="kDLFloat8_e5m2", bits=8),
    "float8_e8m0fnu": DType(code="kDLFloat8_e8m0fnu", bits=8),
    "float4_e2m1fn_x2": DType(code="kDLFloat4_e2m1fn", bits=4, lanes=2),
}

INTEGER_RANGES: dict[str, tuple[int, int]] = {
    "bool": (0, 1),
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint8": (0, 2**8 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**63 - 1),
}
