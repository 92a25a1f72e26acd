"""Quantisation operators. A quantised tensor is a pair (data, sf).

``e4m3``: data float8_e4m3fn [num_tokens, hidden]. ``e2m1``: data int8 [num_tokens, hidden // 2],
two values a byte, the low nibble first.
"""

from tilewheel.quant.back import cast_back, per_token_cast_back
from tilewheel.quant.per_token import per_token_cast
from tilewheel.quant.scales import per_token_cast_with_precomputed_sf, per_token_cast_with_sf_only
from tilewheel.quant.stochastic import stochastic_cast

__all__ = [
    "cast_back",
    "per_token_cast",
    "per_token_cast_back",
    "per_token_cast_with_precomputed_sf",
    "per_token_cast_with_sf_only",
    "stochastic_cast",
]
