"""The families of operators: each a module of public functions, one of references."""

FAMILIES = ("engram", "mhc", "moe", "quant", "rand", "transform")
