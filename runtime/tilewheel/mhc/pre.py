"""``pre_big_fuse_fwd``: the mixes of hyper-connections and the layer's input."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, bfloat16, empty, float32
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from tilewheel import checks, torch_ops
from tilewheel.backend import active
from tilewheel.dispatch import bind, bound
from tilewheel.mhc.streams import NUM_STREAMS, check_like, check_out, check_residual
from tilewheel.reference import mhc as reference

_NUM_MIXES = 24
_MAX_SPLITS = 128
_MAX_REPEAT = 1024
_FLOATS = (
    ("rms_eps", 0.0),
    ("pre_eps", 0.0),
    ("sinkhorn_eps", 1e-30),
    ("post_mult", -checks.FLOAT32_MAX),
    ("norm_eps", 0.0),
)
_Results = tuple[Tensor, Tensor, Tensor]


class _Call(NamedTuple):
    """The arguments of ``pre_big_fuse_fwd``.

    ``tensors`` are gemm_out_mul, gemm_out_sqrsum, scale, base and residual; ``numbers`` rms_eps,
    pre_eps, sinkhorn_eps, post_mult and sinkhorn_repeat.
    """

    tensors: tuple[Tensor, ...]
    numbers: tuple[Any, ...]
    norm_weight: Tensor | None
    norm_eps: Any
    out: Tensor | None = None


def pre_big_fuse_fwd(
    gemm_out_mul: Tensor,
    gemm_out_sqrsum: Tensor,
    scale: Tensor,
    base: Tensor,
    residual: Tensor,
    rms_eps: float,
    pre_eps: float,
    sinkhorn_eps: float,
    post_mult: float,
    sinkhorn_repeat: int,
    *,
    norm_weight: Tensor | None = None,
    norm_eps: float = 1e-6,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each token's post_mix, comb_mix and layer_input, from split-K partials of its mixes.

    All numbers are run-time values: one artifact serves every number of splits, every hidden size
    and every eps. With mixes = sum of ``gemm_out_mul`` over splits * rsqrt(sum of
    ``gemm_out_sqrsum`` / (4 hidden) + rms_eps), 4 of pre, 4 of post and 16 of comb, in float32::

        pre = sigmoid(pre * scale[0] + base[0:4]) + pre_eps
        post_mix = post_mult * sigmoid(post * scale[1] + base[4:8])
        comb = softmax of the rows of (comb * scale[2] + base[8:24]) + sinkhorn_eps
        comb_mix = comb with columns normalised, then sinkhorn_repeat - 1 times rows and columns,
            each by division by (sum + sinkhorn_eps)
        layer_input = sum over streams m of pre[m] * residual[m]

    With ``norm_weight`` layer_input is RMS-normalised: the mean square is that of the unrounded
    float32 values, the value is rounded to bfloat16, then scaled. post_mix and comb_mix are within
    1e-5 relative of the reference for mixes up to about 10 (the rounding of a larger mix counts as
    much as its size), layer_input within one step of bfloat16, counted at the largest product that
    is summed; with ``norm_weight`` two, where a value lies next to a tie and rounds the other way.
    Deterministic; a token's results do not depend on the batch, for one num_splits. A NaN in a
    token's mixes makes its results NaN. Not differentiable.

    Args:
        gemm_out_mul: [num_splits, num_tokens, 24] float32, partial products; num_splits is 1 to
            128. The last stride is 1, the others are free, so that a view of padded rows serves.
        gemm_out_sqrsum: [num_splits, num_tokens] float32, partial sums of squares; the last stride
            is 1.
        scale: [3] float32, contiguous: of pre, post and comb.
        base: [24] float32, contiguous.
        residual: [num_tokens, 4, hidden] bfloat16, contiguous; hidden is a multiple of 64 up to
            65536. CUDA and NPU need its address aligned to 16 bytes.
        rms_eps: added to the mean square of the residual, at least 0.
        pre_eps: added to pre, at least 0.
        sinkhorn_eps: added to comb and to the sums that divide it, at least 1e-30.
        post_mult: factor of post, 2.0 in DeepSeek-V4.
        sinkhorn_repeat: how many times columns are normalised, 1 to 1024.
        norm_weight: [hidden] bfloat16, contiguous, aligned to 16 bytes; None leaves layer_input as
            it is.
        norm_eps: added to the mean square of layer_input, at least 0.
        out: where to write layer_input, [num_tokens, hidden] bfloat16, contiguous, without memory
            in common with an input; None allocates it. The two small results are always allocated.

    Returns:
        (post_mix [num_tokens, 4] float32, comb_mix [num_tokens, 4, 4] float32, layer_input
        [num_tokens, hidden] bfloat16), all contiguous; comb_mix's first index is the source stream.

    Raises:
        TypeError: an argument is of a wrong type or dtype.
        ValueError: an argument's shape, layout, device or value is not as above.
        NoArtifactError: no installed artifact fits the device and these values.
        ArtifactLoadError: the artifact that fits cannot be loaded.

    CPU tensors go to the reference, or to the backend selected with ``tilewheel.backend``. Launches
    on the current stream; can be captured in a CUDA graph once its artifact is loaded
    (``tilewheel.preload``).

    Source: mHC: Manifold-Constrained Hyper-Connections, arXiv 2512.24880, section 4.
    """
    tensors = (gemm_out_mul, gemm_out_sqrsum, scale, base, residual)
    numbers = (rms_eps, pre_eps, sinkhorn_eps, post_mult, sinkhorn_repeat)
    if is_compiling():
        return _traced(_Call(tensors, numbers, norm_weight, norm_eps, out))
    try:
        # Only what the launcher cannot see; it checks the rest.
        if (
            checks.are_plain(*tensors, norm_weight)
            and type(rms_eps) is type(pre_eps) is type(sinkhorn_eps) is float
            and type(post_mult) is type(norm_eps) is float
            and type(sinkhorn_repeat) is int
            # The launcher knows the least of each, and that NaN is none.
            and max(rms_eps, pre_eps, sinkhorn_eps, norm_eps) <= checks.FLOAT32_MAX
            and -checks.FLOAT32_MAX <= post_mult <= checks.FLOAT32_MAX
        ):
            num_tokens, _, hidden = residual.shape
            device = residual.device
            launch = bound.get(
                ("mhc_pre_big_fuse_fwd", device, hidden, norm_weight is not None, active())
            )
            is_plain = out is None or checks.is_writable(out, *tensors, norm_weight)
            if launch is not None and num_tokens and is_plain:
                return _launch(launch, tensors, numbers, norm_weight, norm_eps, out)
    except Exception:
        # The explanation is worth its time only now.
        _checked(_Call(tensors, numbers, norm_weight, norm_eps, out))
        raise
    call = _Call(tensors, numbers, norm_weight, norm_eps, out)
    if torch_ops.is_traced(*tensors, norm_weight, out):
        return _traced(call)
    return _run(call)


def _launch(
    launch: Any,
    tensors: tuple[Tensor, ...],
    numbers: tuple[Any, ...],
    norm_weight: Tensor | None,
    norm_eps: Any,
    out: Tensor | None,
) -> _Results:
    num_tokens, _, hidden = tensors[4].shape
    device = tensors[4].device
    post_mix = empty((num_tokens, NUM_STREAMS), dtype=float32, device=device)
    comb_mix = empty((num_tokens, NUM_STREAMS, NUM_STREAMS), dtype=float32, device=device)
    layer_input = out
    if layer_input is None:
        layer_input = empty((num_tokens, hidden), dtype=bfloat16, device=device)
    if num_tokens:
        launch(*tensors, norm_weight, post_mix, comb_mix, layer_input, *numbers, norm_eps)
        if out is not None:
            increment_version(out)
    return post_mix, comb_mix, layer_input


def _run(call: _Call) -> _Results:
    """Run ``pre_big_fuse_fwd`` on real tensors, with every check made here."""
    call = _checked(call)
    residual = call.tensors[4]
    launch = bind(
        "mhc_pre_big_fuse_fwd",
        residual.device,
        hidden=residual.shape[2],
        output_norm=call.norm_weight is not None,
    )
    if launch is not None:
        return _launch(launch, *call)
    with torch.no_grad():
        post_mix, comb_mix, layer_input = reference.pre_big_fuse_fwd(
            *call.tensors, *call.numbers, norm_weight=call.norm_weight, norm_eps=call.norm_eps
        )
        return post_mix, comb_mix, layer_input if call.out is None else call.out.copy_(layer_input)


def _traced(call: _Call) -> _Results:
    call = _checked(call)
    post_mix, comb_mix, layer_input = _pre_op(
        *call.tensors, *call.numbers, call.norm_weight, call.norm_eps
    )
    return post_mix, comb_mix, layer_input if call.out is None else call.out.copy_(layer_input)


def _run_op(*values: Any) -> _Results:
    return _run(_Call(values[:5], values[5:10], *values[10:]))


def _fake_op(*values: Any) -> _Results:
    call = _checked(_Call(values[:5], values[5:10], *values[10:]))
    residual = call.tensors[4]
    num_tokens, _, hidden = residual.shape
    return (
        residual.new_empty((num_tokens, NUM_STREAMS), dtype=float32),
        residual.new_empty((num_tokens, NUM_STREAMS, NUM_STREAMS), dtype=float32),
        residual.new_empty((num_tokens, hidden)),
    )


def _checked(call: _Call) -> _Call:
    """Return the call with plain numbers once it is as ``pre_big_fuse_fwd`` says."""
    where = "mhc.pre_big_fuse_fwd"
    tensors, numbers, norm_weight, norm_eps, out = call
    gemm_out_mul, gemm_out_sqrsum, scale, base, residual = tensors
    num_tokens, hidden = check_residual(where, residual)
    checks.dense(f"{where}: gemm_out_mul", gemm_out_mul, (float32,))
    if gemm_out_mul.ndim != 3 or gemm_out_mul.shape[1:] != (num_tokens, _NUM_MIXES):
        raise ValueError(
            f"{where}: gemm_out_mul: shape is {tuple(gemm_out_mul.shape)}, must be "
            f"[num_splits, {num_tokens}, {_NUM_MIXES}]"
        )
    num_splits = gemm_out_mul.shape[0]
    if not 1 <= num_splits <= _MAX_SPLITS:
        raise ValueError(
            f"{where}: gemm_out_mul: num_splits is {num_splits}, must be 1 to {_MAX_SPLITS}"
        )
    checks.shaped(
        f"{where}: gemm_out_sqrsum",
        gemm_out_sqrsum,
        like=residual,
        name="residual",
        shape=(num_splits, num_tokens),
        of=float32,
    )
    for name, tensor in (("gemm_out_mul", gemm_out_mul), ("gemm_out_sqrsum", gemm_out_sqrsum)):
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ValueError(f"{where}: {name}: stride(-1) is {tensor.stride(-1)}, must be 1")
    checks.same_device(f"{where}: gemm_out_mul", gemm_out_mul, residual, "residual")
    check_like(where, "scale", scale, (3,), residual)
    check_like(where, "base", base, (_NUM_MIXES,), residual)
    if norm_weight is not None:
        check_like(where, "norm_weight", norm_weight, (hidden,), residual, bfloat16)
    floats = [
        _number(f"{where}: {name}", value, lowest)
        for (name, lowest), value in zip(_FLOATS, (*numbers[:4], norm_eps), strict=True)
    ]
    repeat = checks.integer(f"{where}: sinkhorn_repeat", numbers[4], 1, _MAX_REPEAT)
    if out is not None:
        inputs = (
            *zip(("gemm_out_mul", "gemm_out_sqrsum", "scale", "base"), tensors, strict=False),
        )
        check_out(
            where, out, residual, (num_tokens, hidden), (*inputs, ("norm_weight", norm_weight))
        )
    return _Call(tensors, (*floats[:4], repeat), norm_weight, floats[4], out)


def _number(where: str, value: Any, lowest: float) -> Any:
    """Return a float32's value, or what stands for it while tracing."""
    if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymFloat)):
        raise TypeError(f"{where}: is {checks.kind(value)}, must be a float")
    # Not math.isfinite, which Dynamo cannot trace.
    if not lowest <= value <= checks.FLOAT32_MAX:
        limit = "finite" if lowest < 0 else f"finite and at least {lowest:g}"
        raise ValueError(f"{where}: is {value}, must be {limit}")
    return float(value) if isinstance(value, int) else value


_pre_op = torch_ops.define(
    "mhc_pre_big_fuse_fwd(Tensor gemm_out_mul, Tensor gemm_out_sqrsum, Tensor scale, Tensor base, "
    "Tensor residual, float rms_eps, float pre_eps, float sinkhorn_eps, float post_mult, "
    "int sinkhorn_repeat, Tensor? norm_weight, float norm_eps) -> (Tensor, Tensor, Tensor)",
    _run_op,
    _fake_op,
)
