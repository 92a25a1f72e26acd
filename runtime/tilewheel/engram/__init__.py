"""Engram: an embedding that was looked up, gated into the four residual streams of a token.

``tilewheel.modeling.EngramGate`` is the gate with its gradients, from these operators.
"""

from tilewheel.engram.backward import engram_gate_bwd, grad_w_reduce
from tilewheel.engram.forward import engram_gate_fwd, fused_weight

__all__ = ["engram_gate_bwd", "engram_gate_fwd", "fused_weight", "grad_w_reduce"]
