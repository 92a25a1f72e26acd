"""A functional simulator of Ascend vector cores: TileLang's AscendC, compiled for a CPU."""

from tilewheel_build.simulator.compile import (
    compile_kernel,
    compile_runtime,
    default_compiler,
    kernel_commands,
)
from tilewheel_build.simulator.rewrite import (
    KernelEntry,
    Parameter,
    RewrittenSource,
    rewrite_source,
)

__all__ = [
    "KernelEntry",
    "Parameter",
    "RewrittenSource",
    "compile_kernel",
    "compile_runtime",
    "default_compiler",
    "kernel_commands",
    "rewrite_source",
]
