"""The families of operators: each a module of public functions, one of references."""

FAMILIES = ("engram", "moe", "quant", "rand", "transform")
