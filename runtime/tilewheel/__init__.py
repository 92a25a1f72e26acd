"""Ahead-of-time TileLang kernels: found by device and key, loaded with no compiler.

Importing this package imports neither torch nor tvm_ffi. The operator modules (one for each
family), ``modeling`` and ``reference`` are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tilewheel import log as _log
from tilewheel.api import Preloaded, artifacts, load, preload, why
from tilewheel.backend import backend
from tilewheel.device import Device
from tilewheel.dispatch import refresh
from tilewheel.errors import ArtifactLoadError, KeyFormatError, ManifestError, NoArtifactError
from tilewheel.families import FAMILIES
from tilewheel.key import Key
from tilewheel.loader import Kernel
from tilewheel.version import VERSION

if TYPE_CHECKING:
    from tilewheel import engram as engram
    from tilewheel import mhc as mhc
    from tilewheel import modeling as modeling
    from tilewheel import moe as moe
    from tilewheel import quant as quant
    from tilewheel import rand as rand
    from tilewheel import reference, simulator
    from tilewheel import transform as transform

__version__ = VERSION

__all__ = [
    "ArtifactLoadError",
    "Device",
    "Kernel",
    "Key",
    "KeyFormatError",
    "ManifestError",
    "NoArtifactError",
    "Preloaded",
    "__version__",
    "artifacts",
    "backend",
    "load",
    "modeling",
    "preload",
    "reference",
    "refresh",
    "simulator",
    "why",
    *FAMILIES,
]

_LAZY_MODULES = (*FAMILIES, "modeling", "reference", "simulator")

_log.configure()


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return importlib.import_module(f"tilewheel.{name}")
    raise AttributeError(f"module 'tilewheel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
