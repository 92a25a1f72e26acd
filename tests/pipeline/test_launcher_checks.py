"""What a launcher says of wrong arguments. No GPU is needed: tensors only claim to be on one.

``scale`` of any width takes (x strided, bias, y, factor, shift); of width 128 it has no bias.
``stage`` takes (x, y, codes, enabled, num_splits, num_sms).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

PLAIN = "scale-hidden=128-with_bias=false-cuda-sm_90a"
BIASED = "scale-hidden=any-with_bias=true-cuda-sm_90a"
STAGE = "stage-hidden=16384-cuda-sm_90a"
CPU, CUDA = 1, 2

NO_DRIVER = "no CUDA driver: libcuda.so.1: cannot open shared object file"


@pytest.fixture(scope="module", autouse=True)
def _no_driver() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    pytest.skip("this machine has a CUDA driver, which the tensors of these tests would reach")


@pytest.fixture(scope="module")
def plain(load: Callable[[str], Any]) -> Any:
    return load(PLAIN)["scale"]


@pytest.fixture(scope="module")
def scale(load: Callable[[str], Any]) -> Any:
    return load(BIASED)["scale"]


@pytest.fixture(scope="module")
def stage(load: Callable[[str], Any]) -> Any:
    return load(STAGE)["stage"]


def refusal(function: Any, *arguments: object) -> tuple[type[BaseException], str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the type is compared by the caller
        function(*arguments)
    return caught.type, str(caught.value)


@pytest.mark.parametrize(
    ("position", "value", "kind", "message"),
    [
        (0, None, TypeError, "scale: x: is None, must be a tensor"),
        (0, 3, TypeError, "scale: x: is an int, must be a tensor"),
        (0, True, TypeError, "scale: x: is a bool, must be a tensor"),
        (0, 1.5, TypeError, "scale: x: is a float, must be a tensor"),
        (0, "x", TypeError, "scale: x: is a str, must be a tensor"),
        (0, "a text that is not small", TypeError, "scale: x: is a str, must be a tensor"),
        (1, [1], TypeError, "scale: bias: is an object of another type, must be a tensor"),
        (1, None, TypeError, "scale: bias: is None, must be a tensor"),
        (3, "1", TypeError, "scale: factor: is a str, must be a float"),
        (3, None, TypeError, "scale: factor: is None, must be a float"),
        (3, 1000.5, ValueError, "scale: factor: is 1000.5, must be at most 1000.0"),
        (3, -1001, ValueError, "scale: factor: is -1001, must be at least -1000.0"),
        (3, float("nan"), ValueError, "scale: factor: is nan, must be at least -1000.0"),
        (4, 1.0, TypeError, "scale: shift: is a float, must be an int"),
        (4, None, TypeError, "scale: shift: is None, must be an int"),
        (4, -9, ValueError, "scale: shift: is -9, must be between -8 and 100"),
        (4, 101, ValueError, "scale: shift: is 101, must be between -8 and 100"),
        (4, 2**62, ValueError, "scale: shift: is 4611686018427387904, must be between -8 and 100"),
    ],
)
def test_argument_of_a_wrong_kind_or_range_is_named(
    scale: Any,
    claimed: Callable[..., Any],
    position: int,
    value: object,
    kind: type[Exception],
    message: str,
) -> None:
    arguments = [claimed(3, 128), claimed(128), claimed(3, 128), 1.0, 0]
    arguments[position] = value
    assert refusal(scale, *arguments) == (kind, message)


@pytest.mark.parametrize(
    ("position", "shape", "options", "kind", "message"),
    [
        (0, (128,), {}, ValueError, "x: is 1-dimensional, must be 2-dimensional"),
        (1, (1, 128), {}, ValueError, "bias: is 2-dimensional, must be 1-dimensional"),
        (1, (), {}, ValueError, "bias: is 0-dimensional, must be 1-dimensional"),
        (0, (3, 128), {"dtype": "float16"}, TypeError, "x: is float16, must be float32"),
        (0, (3, 128), {"dtype": "bfloat16"}, TypeError, "x: is bfloat16, must be float32"),
        (2, (3, 128), {"dtype": "int32"}, TypeError, "y: is int32, must be float32"),
        (0, (3, 128), {"dtype": "float32x4"}, TypeError, "x: is float32x4, must be float32"),
        (
            0,
            (3, 128),
            {"dtype": "float8_e4m3fn"},
            TypeError,
            "x: is float8_e4m3fn_8, must be float32",
        ),
        (0, (3, 130), {}, ValueError, "x.shape[1]: is 130, must be a multiple of 64"),
        (
            0,
            (3, 0),
            {},
            ValueError,
            "x.shape[1] (hidden): is 0, must be between 64 and 4096",
        ),
        (
            0,
            (3, 4160),
            {},
            ValueError,
            "x.shape[1] (hidden): is 4160, must be between 64 and 4096",
        ),
        (
            1,
            (192,),
            {},
            ValueError,
            "bias.shape[0]: is 192, must be 128 (num_chunks, as in x.shape[1])",
        ),
        (2, (4, 128), {}, ValueError, "y.shape[0]: is 4, must be 3 (num_tokens, as in x.shape[0])"),
        (
            2,
            (3, 64),
            {},
            ValueError,
            "y.shape[1]: is 64, must be 128 (num_chunks, as in x.shape[1])",
        ),
        (0, (3, 128), {"strides": (256, 2)}, ValueError, "x.stride()[1]: is 2, must be 1"),
        (
            0,
            (3, 128),
            {"strides": (-128, 1)},
            ValueError,
            "row_stride: is -128, must be between 0 and 2147483647",
        ),
        (
            2,
            (3, 128),
            {"strides": (256, 1)},
            ValueError,
            "y: stride(0) is 256, must be 128 (row-major contiguous)",
        ),
        (
            2,
            (3, 128),
            {"strides": (1, 3)},
            ValueError,
            "y: stride(1) is 3, must be 1 (row-major contiguous)",
        ),
        (
            2,
            (3, 128),
            {"data": 0x10004},
            ValueError,
            "y: data pointer is aligned to 4 bytes, must be to 16",
        ),
        (
            2,
            (3, 128),
            {"byte_offset": 8},
            ValueError,
            "y: data pointer is aligned to 8 bytes, must be to 16",
        ),
        (
            0,
            (3, 128),
            {"device": (CPU, 0)},
            ValueError,
            "x: is on device type 1, must be on a CUDA device",
        ),
        (
            1,
            (128,),
            {"device": (CPU, 0)},
            ValueError,
            "bias: is on device 1:0, must be on 2:0 like x",
        ),
        (
            2,
            (3, 128),
            {"device": (CUDA, 1)},
            ValueError,
            "y: is on device 2:1, must be on 2:0 like x",
        ),
        (
            0,
            (3, 128),
            {"device": (CUDA, 64)},
            ValueError,
            "x: is on device 64, must be below 64",
        ),
        (
            0,
            (3, 128),
            {"device": (CUDA, -1)},
            ValueError,
            "x: is on device -1, must be below 64",
        ),
    ],
)
def test_tensor_of_a_wrong_description_is_named(
    scale: Any,
    claimed: Callable[..., Any],
    position: int,
    shape: tuple[int, ...],
    options: dict[str, Any],
    kind: type[Exception],
    message: str,
) -> None:
    arguments = [claimed(3, 128), claimed(128), claimed(3, 128), 1.0, 0]
    arguments[position] = claimed(*shape, **options)
    assert refusal(scale, *arguments) == (kind, f"scale: {message}")


def test_fixed_size_is_compared_with_its_value(plain: Any, claimed: Callable[..., Any]) -> None:
    assert refusal(plain, claimed(3, 64), None, claimed(3, 128), 1.0, 0) == (
        ValueError,
        "scale: x.shape[1]: is 64, must be 128",
    )


def test_tensor_that_the_variant_lacks_must_be_none(
    plain: Any, claimed: Callable[..., Any]
) -> None:
    assert refusal(plain, claimed(3, 128), claimed(128), claimed(3, 128), 1.0, 0) == (
        TypeError,
        "scale: bias: is a tensor, must be None in this variant",
    )


def test_size_beyond_the_kernels_integers_is_refused(
    scale: Any, claimed: Callable[..., Any]
) -> None:
    tokens = 2**31
    assert refusal(scale, claimed(tokens, 128), claimed(128), claimed(tokens, 128), 1.0, 0) == (
        ValueError,
        "scale: num_tokens: is 2147483648, must be between 0 and 2147483647",
    )


def test_stride_beyond_the_kernels_integers_is_refused(
    scale: Any, claimed: Callable[..., Any]
) -> None:
    x = claimed(3, 128, strides=(2**31, 1))
    assert refusal(scale, x, claimed(128), claimed(3, 128), 1.0, 0) == (
        ValueError,
        "scale: row_stride: is 2147483648, must be between 0 and 2147483647",
    )


@pytest.mark.parametrize("count", [0, 4, 6, 12])
def test_wrong_number_of_arguments_lists_the_arguments(scale: Any, count: int) -> None:
    assert refusal(scale, *[None] * count) == (
        TypeError,
        f"scale: takes 5 arguments (x, bias, y, factor, shift), got {count}",
    )


def test_limit_of_a_dimension_in_the_spec_is_checked(
    stage: Any, claimed: Callable[..., Any]
) -> None:
    rows = 1_000_001
    tensors = [claimed(rows, 16384), claimed(rows, 16384), claimed(rows, 3, dtype="int32")]
    assert refusal(stage, *tensors, True, 1, 132) == (
        ValueError,
        "stage: x.shape[0] (num_rows): is 1000001, must be between 0 and 1000000",
    )


@pytest.mark.parametrize(
    ("scalars", "message"),
    [
        ((2, 1, 132), "enabled: is 2, must be between 0 and 1"),
        ((True, 0, 132), "num_splits: is 0, must be one of 1, 2, 65536"),
        ((True, 3, 132), "num_splits: is 3, must be one of 1, 2, 65536"),
        ((True, 1, 0), "num_sms: is 0, must be between 1 and 2147483647"),
        ((True, 1, 2**31), "num_sms: is 2147483648, must be between 1 and 2147483647"),
        ((True, 65536, 132), "grid is 132x65536x1, must fit the device's limits"),
    ],
)
def test_scalar_out_of_its_types_or_the_devices_range_is_refused(
    stage: Any, claimed: Callable[..., Any], scalars: tuple[int, int, int], message: str
) -> None:
    tensors = [claimed(4, 16384), claimed(4, 16384), claimed(4, 3, dtype="int32")]
    assert refusal(stage, *tensors, *scalars) == (ValueError, f"stage: {message}")


def test_alignment_is_that_of_every_row_of_a_slice(stage: Any, claimed: Callable[..., Any]) -> None:
    # 16 in the spec, but rows of 3 int32 are 12 bytes apart: codes[1:] is aligned to 4.
    x = claimed(4, 16384)
    y = claimed(4, 16384)
    kind, message = refusal(stage, x, y, claimed(4, 3, dtype="int32", data=0x1000C), True, 1, 132)
    assert (kind, message[:61]) == (RuntimeError, f"stage: {NO_DRIVER}"[:61])
    assert refusal(stage, x, y, claimed(4, 3, dtype="int32", data=0x10002), True, 1, 132) == (
        ValueError,
        "stage: codes: data pointer is aligned to 2 bytes, must be to 4",
    )


@pytest.mark.parametrize(
    "options",
    [
        {"strides": None},  # DLPack's way to say row-major
        {"strides": (256, 1)},
        {"strides": (0, 1)},
        {"data": 0x10004, "byte_offset": 12},
    ],
)
def test_tensor_that_fits_passes_every_check(
    scale: Any, claimed: Callable[..., Any], options: dict[str, Any]
) -> None:
    arguments = (claimed(3, 128, **options), claimed(128), claimed(3, 128))
    kind, message = refusal(scale, *arguments, 1, True)
    assert kind is RuntimeError
    assert NO_DRIVER in message


@pytest.mark.parametrize("options", [{"strides": (7, 9)}, {"data": 0x10001}])
def test_empty_tensor_may_have_any_layout_and_needs_no_driver(
    plain: Any, claimed: Callable[..., Any], options: dict[str, Any]
) -> None:
    plain(claimed(0, 128), None, claimed(0, 128, **options), 1.0, 0)


def test_empty_strided_tensor_may_have_any_strides(scale: Any, claimed: Callable[..., Any]) -> None:
    scale(claimed(0, 128, strides=(7, 9)), claimed(128), claimed(0, 128), 1, True)


def test_stride_of_a_single_row_does_not_matter(plain: Any, claimed: Callable[..., Any]) -> None:
    y = claimed(1, 128, strides=(999, 1))
    kind, message = refusal(plain, claimed(1, 128), None, y, 1.0, 0)
    assert kind is RuntimeError
    assert NO_DRIVER in message


def test_empty_tensor_on_the_cpu_is_still_refused(plain: Any, claimed: Callable[..., Any]) -> None:
    x = claimed(0, 128, device=(CPU, 0))
    assert refusal(plain, x, None, claimed(0, 128), 1.0, 0) == (
        ValueError,
        "scale: x: is on device type 1, must be on a CUDA device",
    )


def test_tensors_of_torch_are_checked_alike(plain: Any) -> None:
    torch = pytest.importorskip("torch")
    assert refusal(plain, torch.zeros(2, 128), None, torch.zeros(2, 128), 1.0, 0) == (
        ValueError,
        "scale: x: is on device type 1, must be on a CUDA device",
    )


def test_prepare_without_a_driver_says_what_to_install(load: Callable[[str], Any]) -> None:
    kind, message = refusal(load(PLAIN)["prepare"], 0)
    assert kind is RuntimeError
    assert message == (
        "scale: no CUDA driver: libcuda.so.1: cannot open shared object file: "
        "No such file or directory, must be installed with version 580 or newer"
    )


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((), TypeError, "scale: prepare takes 1 argument, got 0"),
        ((0, 1), TypeError, "scale: prepare takes 1 argument, got 2"),
        (("cuda:0",), TypeError, "scale: device: is a str, must be an int"),
        ((-1,), ValueError, "scale: device: is -1, must be between 0 and 63"),
        ((64,), ValueError, "scale: device: is 64, must be between 0 and 63"),
    ],
)
def test_prepare_checks_its_argument(
    load: Callable[[str], Any],
    arguments: tuple[object, ...],
    kind: type[Exception],
    message: str,
) -> None:
    assert refusal(load(PLAIN)["prepare"], *arguments) == (kind, message)
