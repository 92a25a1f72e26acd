"""Cases of the casts."""

from __future__ import annotations

from typing import Any

import torch

from cases import eager_quant
from cases.case import FORMAT, Case, bfloat16

_SIZE = {"e4m3": 128, "e2m1": 32}
_HIDDEN = 7168


def _values(num_tokens: int, x_dtype: str, device: str) -> torch.Tensor:
    x = bfloat16(num_tokens, _HIDDEN, device=device)
    return x if x_dtype == "bfloat16" else x.float()


def _data(num_tokens: int, fmt: str, device: str) -> torch.Tensor:
    """Return data of every code but e4m3's NaN."""
    if fmt == "e2m1":
        shape = (num_tokens, _HIDDEN // 2)
        return torch.randint(-128, 128, shape, dtype=torch.int8, device=device)
    return bfloat16(num_tokens, _HIDDEN, device=device).to(torch.float8_e4m3fn)


def _num_words(size: int, sf_dtype: str) -> int:
    groups = -(-_HIDDEN // size)
    return -(-groups // 4) if sf_dtype == "int32" else groups


def _scales(num_tokens: int, size: int, sf_dtype: str, device: str) -> torch.Tensor:
    """Return scales from 1/128 to 1, of a packed form exponents of that range."""
    words = _num_words(size, sf_dtype)
    if sf_dtype == "int32":
        shape = (num_tokens, 4 * words)
        return torch.randint(120, 128, shape, dtype=torch.uint8, device=device).view(torch.int32)
    scales = torch.rand((num_tokens, words), device=device) * 0.99 + 0.01
    return scales if sf_dtype == "float32" else scales.to(torch.float8_e4m3fn)


def _empty_pair(num_tokens: int, fmt: str, size: int, sf_dtype: str, device: str) -> Any:
    width = _HIDDEN // 2 if fmt == "e2m1" else _HIDDEN
    data_dtype = torch.int8 if fmt == "e2m1" else torch.float8_e4m3fn
    shape = (num_tokens, _num_words(size, sf_dtype))
    return (
        torch.empty((num_tokens, width), dtype=data_dtype, device=device),
        torch.empty(shape, dtype=getattr(torch, sf_dtype), device=device),
    )


def _row_bytes(fmt: str, size: int, sf_dtype: str) -> int:
    width = _HIDDEN // 2 if fmt == "e2m1" else _HIDDEN
    return width + getattr(torch, sf_dtype).itemsize * _num_words(size, sf_dtype)


def _words(fmt: str, size: int, sf_dtype: str, round_sf: bool, col_major: bool) -> str:
    form = {"int32": " ue8m0", "float8_e4m3fn": " e4m3 scales"}.get(
        sf_dtype, " round" if round_sf else ""
    )
    return f"{fmt} {size}{form}{' col' if col_major else ''}"


def _flags(sf_dtype: str, round_sf: bool, col_major: bool = False) -> dict[str, bool]:
    flags = {
        "round_sf": round_sf,
        "use_packed_ue8m0": sf_dtype == "int32",
        "use_e4m3_sf": sf_dtype == "float8_e4m3fn",
        "use_tma_aligned_col_major_sf": col_major,
    }
    return {name: flag for name, flag in flags.items() if flag}


def per_token_cast(
    x_dtype: str, data_dtype: str, sf_dtype: str, round_sf: bool, *, col_major: bool = False
) -> Case:
    fmt = FORMAT[data_dtype]
    size = _SIZE[fmt]
    flags = _flags(sf_dtype, round_sf, col_major)

    def inputs(num_tokens: int, device: str) -> Any:
        out = _empty_pair(num_tokens, fmt, size, sf_dtype, device)
        if col_major:
            words, leading = out[1].shape[1], -(-num_tokens // 4) * 4
            sf = torch.empty((words, leading), dtype=out[1].dtype, device=device)
            out = (out[0], sf.t()[:num_tokens])
        return _values(num_tokens, x_dtype, device), out

    def allocating(tw: Any, tensors: Any) -> Any:
        return tw.quant.per_token_cast(tensors[0], fmt, size, **flags)

    def preallocated(tw: Any, tensors: Any) -> Any:
        return tw.quant.per_token_cast(tensors[0], fmt, size, out=tensors[1], **flags)

    def peer(tile_kernels: Any, tensors: Any) -> Any:
        return tile_kernels.quant.per_token_cast(tensors[0], fmt, size, **flags)

    def eager(tensors: Any) -> Any:
        data, sf = eager_quant.cast(tensors[0].float(), fmt, size, round_sf, sf_dtype)
        return data, sf.t().contiguous().t() if col_major else sf

    of = " of float32" if x_dtype == "float32" else ""
    x_bytes = getattr(torch, x_dtype).itemsize * _HIDDEN
    return Case(
        name=f"per_token_cast {_words(fmt, size, sf_dtype, round_sf, col_major)}{of}",
        operator="per_token_cast",
        parameters=(
            ("x_dtype", x_dtype),
            ("data_dtype", data_dtype),
            ("sf_dtype", sf_dtype),
            ("round_sf", round_sf),
        ),
        inputs=inputs,
        allocating=allocating,
        preallocated=preallocated,
        peer=peer,
        eager=eager,
        bytes=lambda num_tokens: num_tokens * (x_bytes + _row_bytes(fmt, size, sf_dtype)),
    )


def per_token_recast(x_dtype: str, data_dtype: str, sf_dtype: str, round_sf: bool) -> Case:
    """To another format or group size, such as e2m1 weights of experts to e4m3."""
    before, fmt = FORMAT[x_dtype], FORMAT[data_dtype]
    size_before, size = _SIZE[before], _SIZE[fmt]
    flags = _flags(sf_dtype, round_sf)

    def inputs(num_tokens: int, device: str) -> Any:
        x = _data(num_tokens, before, device), _scales(num_tokens, size_before, "float32", device)
        return x, _empty_pair(num_tokens, fmt, size, sf_dtype, device)

    def call(library: Any, tensors: Any, **more: Any) -> Any:
        return library.quant.per_token_cast(
            tensors[0], fmt, size, x_block_size=(1, size_before), **flags, **more
        )

    def eager(tensors: Any) -> Any:
        values = eager_quant.values(*tensors[0], size_before)
        return eager_quant.cast(values, fmt, size, round_sf, sf_dtype)

    form = "" if sf_dtype == "float32" and round_sf else _words("", 0, sf_dtype, False, False)[2:]
    moved = _row_bytes(before, size_before, "float32") + _row_bytes(fmt, size, sf_dtype)
    return Case(
        name=f"per_token_cast of {before} {size_before} to {fmt} {size}{form}",
        operator="per_token_recast",
        parameters=(
            ("x_dtype", x_dtype),
            ("data_dtype", data_dtype),
            ("sf_dtype", sf_dtype),
            ("round_sf", round_sf),
        ),
        inputs=inputs,
        allocating=call,
        preallocated=lambda tw, tensors: call(tw, tensors, out=tensors[1]),
        peer=call,
        eager=eager,
        bytes=lambda num_tokens: num_tokens * moved,
    )


def per_token_cast_with_sf_only(
    x_dtype: str, sf_dtype: str, round_sf: bool, *, fmt: str = "e4m3"
) -> Case:
    size = _SIZE[fmt]
    flags = _flags(sf_dtype, round_sf)

    def call(library: Any, x: Any) -> Any:
        return library.quant.per_token_cast_with_sf_only(x, fmt, size, **flags)

    moved = getattr(torch, x_dtype).itemsize * _HIDDEN
    moved += _num_words(size, sf_dtype) * getattr(torch, sf_dtype).itemsize
    form = "" if round_sf and sf_dtype == "float32" else f" {sf_dtype}"
    return Case(
        name=f"per_token_cast_with_sf_only {fmt} {size}{form}",
        operator="per_token_cast_with_sf_only",
        parameters=(("x_dtype", x_dtype), ("sf_dtype", sf_dtype), ("round_sf", round_sf)),
        inputs=lambda num_tokens, device: _values(num_tokens, x_dtype, device),
        allocating=call,
        peer=call,
        eager=lambda x: eager_quant.scales(x.float(), fmt, size, round_sf, sf_dtype)[1],
        bytes=lambda num_tokens: num_tokens * moved,
    )


def per_token_cast_with_precomputed_sf(x_dtype: str, data_dtype: str) -> Case:
    fmt = FORMAT[data_dtype]
    size = _SIZE[fmt]

    def inputs(num_tokens: int, device: str) -> Any:
        return _values(num_tokens, x_dtype, device), _scales(num_tokens, size, "float32", device)

    def call(library: Any, tensors: Any) -> Any:
        x, sf = tensors
        return library.quant.per_token_cast_with_precomputed_sf(x, fmt, size, sf)

    x_bytes = getattr(torch, x_dtype).itemsize * _HIDDEN
    return Case(
        name=f"per_token_cast_with_precomputed_sf {fmt} {size}",
        operator="per_token_cast_with_precomputed_sf",
        parameters=(("x_dtype", x_dtype), ("data_dtype", data_dtype)),
        inputs=inputs,
        allocating=call,
        peer=call,
        eager=lambda tensors: eager_quant.encode(tensors[0].float(), tensors[1], fmt, size),
        bytes=lambda num_tokens: num_tokens * (x_bytes + _row_bytes(fmt, size, "float32")),
    )


def stochastic_cast(x_dtype: str, data_dtype: str, round_sf: bool) -> Case:
    """The peer's needs sm_100a; torch rounds no cast stochastically."""
    fmt = FORMAT[data_dtype]
    size = _SIZE[fmt]
    flags = _flags("float32", round_sf)

    def ours(tw: Any, x: Any) -> Any:
        return tw.quant.stochastic_cast(x, fmt, size, seed=1, **flags)

    x_bytes = getattr(torch, x_dtype).itemsize * _HIDDEN
    return Case(
        name=f"stochastic_cast {fmt} {size}",
        operator="stochastic_cast",
        parameters=(("x_dtype", x_dtype), ("data_dtype", data_dtype), ("round_sf", round_sf)),
        inputs=lambda num_tokens, device: _values(num_tokens, x_dtype, device),
        allocating=ours,
        bytes=lambda num_tokens: num_tokens * (x_bytes + _row_bytes(fmt, size, "float32")),
    )


def cast_back(data_dtype: str, sf_dtype: str, out_dtype: str) -> Case:
    fmt = FORMAT[data_dtype]
    size = _SIZE[fmt]
    out = {"bfloat16": "bf16", "float32": "f32"}[out_dtype]
    element = getattr(torch, out_dtype)

    def inputs(num_tokens: int, device: str) -> Any:
        x = _data(num_tokens, fmt, device), _scales(num_tokens, size, sf_dtype, device)
        return x, torch.empty((num_tokens, _HIDDEN), dtype=element, device=device)

    def peer(tile_kernels: Any, tensors: Any) -> Any:
        name = "fp32" if out == "f32" else out
        return tile_kernels.quant.cast_back(tensors[0], name, (1, size))

    form = {"float32": "", "int32": " ue8m0", "float8_e4m3fn": " e4m3 scales"}[sf_dtype]
    moved = _row_bytes(fmt, size, sf_dtype) + element.itemsize * _HIDDEN
    return Case(
        name=f"cast_back {fmt} {size}{form} {out}",
        operator="cast_back",
        parameters=(("data_dtype", data_dtype), ("sf_dtype", sf_dtype), ("out_dtype", out_dtype)),
        inputs=inputs,
        allocating=lambda tw, tensors: tw.quant.cast_back(tensors[0], out, (1, size)),
        preallocated=lambda tw, tensors: tw.quant.cast_back(
            tensors[0], out, (1, size), out=tensors[1]
        ),
        peer=peer,
        eager=lambda tensors: eager_quant.values(*tensors[0], size).to(element),
        bytes=lambda num_tokens: num_tokens * moved,
    )
