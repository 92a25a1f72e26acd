"""The families of operators: each a module of public functions, one of references."""

FAMILIES = ("moe", "quant", "rand", "transform")
