"""broken, CUDA: a copy, or one way to fail."""

import os
import signal

import tilelang.language as T


def broken(*, mode):
    if mode == "factory":
        raise ValueError("mode: is factory, must be fine")
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    function = {"body": _body, "lowering": _lowering, "device_code": _device_code}.get(mode, _fine)
    return function(T.dynamic("num_tokens"))


def _fine(tokens):
    @T.prim_func
    def broken(x: T.Tensor((tokens,), "float32"), y: T.Tensor((tokens,), "float32")):
        with T.Kernel(tokens, threads=32) as token:
            y[token] = x[token]

    return broken


def _body(tokens):
    @T.prim_func
    def broken(x: T.Tensor((tokens,), "float32"), y: T.Tensor((tokens,), "float32")):
        with T.Kernel(tokens, threads=32) as token:
            y[token] = T.no_such_function(x[token])

    return broken


def _lowering(tokens):
    @T.prim_func
    def broken(x: T.Tensor((tokens,), "float32"), y: T.Tensor((tokens,), "float32")):
        with T.Kernel(tokens, threads=32) as token:
            a_shared = T.alloc_shared((64, 7), "float16")
            c_fragment = T.alloc_fragment((64, 64), "float32")
            T.gemm(a_shared, a_shared, c_fragment, transpose_B=True)
            y[token] = x[token] + c_fragment[0, 0]

    return broken


def _device_code(tokens):
    @T.prim_func
    def broken(x: T.Tensor((tokens,), "float32"), y: T.Tensor((tokens,), "float32")):
        with T.Kernel(tokens, threads=32) as token:
            y[token] = T.call_extern("float32", "no_such_function", x[token])

    return broken
