"""Every operator in plain PyTorch: the standard that all backends are compared to."""

from __future__ import annotations

from tilewheel.reference import mhc, moe, quant, rand, transform

__all__ = ["mhc", "moe", "quant", "rand", "transform"]
