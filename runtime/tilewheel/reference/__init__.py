"""Every operator in plain PyTorch: the standard that all backends are compared to."""

from __future__ import annotations

from tilewheel.reference import moe, quant, rand, transform

__all__ = ["moe", "quant", "rand", "transform"]
