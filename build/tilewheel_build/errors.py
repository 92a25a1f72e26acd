"""Failures of the driver. Each knows the exit code that the command line gives for it."""

from __future__ import annotations


class OptionError(ValueError):
    """An option of the command line has a value that it cannot have."""

    exit_code = 2


class ToolchainError(RuntimeError):
    """A compiler or a package that the build needs is not installed."""

    exit_code = 4


class LoweringError(RuntimeError):
    """TileLang did not turn the kernel into device source, or the result breaks the contract."""

    exit_code = 5


class CompilationError(RuntimeError):
    """A compiler refused a source that the driver generated."""

    exit_code = 6


class ArtifactError(RuntimeError):
    """A built artifact is not what the manifest and the contract say."""

    exit_code = 7


class WorkerError(RuntimeError):
    """A unit of work took the process that it ran in with it."""

    exit_code = 1


class ClusterError(RuntimeError):
    """A cluster that a build runs on went away, or has nobody to work."""

    exit_code = 8
