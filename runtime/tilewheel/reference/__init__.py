"""Every operator in plain PyTorch: the standard that all backends are compared to."""

from __future__ import annotations

from tilewheel.reference import engram, mhc, moe, quant, rand, transform

__all__ = ["engram", "mhc", "moe", "quant", "rand", "transform"]
