"""Engram: conditional memory by lookup, gated into the residual streams."""
