"""The values that a spec file becomes. Each field says here, once, what it may hold and means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tilewheel.key import Value
from tilewheel_build import spec_fields as form
from tilewheel_build.spec_fields import KNOWN_ARCHS, SCALAR_DTYPES, SPEC_BACKENDS, about

Match: TypeAlias = tuple[tuple[str, Value], ...]
"""Parameters and values, sorted by name. It matches what binds each of them to that very value."""

Axis: TypeAlias = tuple[str, tuple[Value, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A compile-time value."""

    name: str
    type: str = field(
        metadata=about(
            form.one_of(("int", "bool", "string")),
            "type of the values; only an `int` can be bound to `any`",
        )
    )
    meaning: str = field(metadata=about(form.LINE, "what the value is, with its unit"))
    minimum: int | None = field(
        default=None,
        metadata=about(form.INTEGER, "least value of an `int`; required without `choices`"),
    )
    maximum: int | None = field(
        default=None,
        metadata=about(form.INTEGER, "largest value of an `int`; required without `choices`"),
    )
    multiple_of: int = field(
        default=1,
        metadata=about(
            form.POSITIVE, "what divides each value of an `int`, also one that comes at run time"
        ),
    )
    choices: tuple[int | str, ...] = field(
        default=(),
        metadata=about(
            form.CHOICES,
            "all values; required for a `string`; an `int` with choices has no bounds and no `any`",
        ),
    )
    values: tuple[Value, ...] = field(
        default=(),
        metadata=about(form.VALUES, "the axis: each value that is built", of_backend=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A size that is known only at run time and that tensors share by its name."""

    name: str
    meaning: str = field(metadata=about(form.LINE, "what is counted"))
    minimum: int = field(default=0, metadata=about(form.NATURAL, "least size"))
    maximum: int | None = field(
        default=None, metadata=about(form.NATURAL, "largest size; unlimited when absent")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor argument, in calling order."""

    name: str
    role: str = field(
        metadata=about(
            form.one_of(("in", "out", "inout")), "whether the kernel reads, writes or updates it"
        )
    )
    dtype: str = field(
        metadata=about(form.DTYPE, "element type; a parameter's name gives each variant its own")
    )
    shape: tuple[int | str, ...] = field(
        metadata=about(form.SHAPE, "sizes, outermost first; the same name is the same size")
    )
    alignment: int = field(
        metadata=about(form.ALIGNMENT, "alignment of the first element in bytes")
    )
    meaning: str = field(metadata=about(form.LINE, "what it holds"))
    layout: str = field(
        default="row_major",
        metadata=about(
            form.one_of(("row_major", "strided")),
            "`row_major` is contiguous; `strided` takes strides at run time, the last one 1",
        ),
    )
    when: Match = field(
        default=(),
        metadata=about(
            form.MATCH,
            "the variants that have the tensor; in the others the caller passes None",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """One number that the caller passes at run time, after the tensors."""

    name: str
    dtype: str = field(metadata=about(form.one_of(SCALAR_DTYPES), "type of the number"))
    meaning: str = field(metadata=about(form.LINE, "what it is, with its unit"))
    minimum: int | float | None = field(
        default=None, metadata=about(form.NUMBER, "least value; unlimited when absent")
    )
    maximum: int | float | None = field(
        default=None, metadata=about(form.NUMBER, "largest value; unlimited when absent")
    )
    choices: tuple[int, ...] = field(
        default=(),
        metadata=about(form.INTEGERS, "all values of an integer, in place of bounds"),
    )


_ARCHS = tuple(arch for backend in SPEC_BACKENDS for arch in KNOWN_ARCHS[backend])


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What one backend makes of the operator."""

    name: str
    kernel: str = field(
        metadata=about(form.KERNEL, "file that holds the kernel, below kernels/tilewheel_kernels")
    )
    archs: tuple[str, ...] = field(
        metadata=about(
            form.list_of("architectures", {"enum": list(_ARCHS)}),
            "architectures to build for: "
            + "; ".join(f"{name} {', '.join(KNOWN_ARCHS[name])}" for name in SPEC_BACKENDS),
        )
    )
    parameters: tuple[Parameter, ...] = field(
        default=(),
        metadata=about(
            form.mapping_of("name to parameter with `values`", form.named("backend_parameter")),
            "parameters that only this backend has; they are part of its keys",
        ),
    )
    exclude: tuple[Match, ...] = field(
        default=(),
        metadata=about(form.MATCHES, "what this backend does not support"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named part of the variants. ``all`` is the single empty match."""

    name: str
    matches: tuple[Match, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSpec:
    """The contract of one operator and the grid of its variants; ``path`` is where it stands."""

    path: str
    operator: str = field(metadata=about(form.NAME, "its name; the file is `<operator>.yaml`"))
    family: str = field(metadata=about(form.NAME, "its family; the folder is `specs/<family>`"))
    summary: str = field(metadata=about(form.LINE, "what it computes, in one sentence"))
    source: str = field(metadata=about(form.LINE, "paper and section, or `original`"))
    notes: str = field(
        default="",
        metadata=about(form.TEXT, "ties, special values, exactness: what a caller can rely on"),
    )
    parameters: tuple[Parameter, ...] = field(
        default=(),
        metadata=about(
            form.mapping_of("name to parameter", form.named("parameter")),
            "the compile-time values; each is bound by `points` or by `grid`",
        ),
    )
    points: tuple[Match, ...] = field(
        default=(),
        metadata=about(
            form.list_of("points", form.MATCH_SCHEMA),
            "coupled values: each point binds the same parameters",
        ),
    )
    grid: tuple[Axis, ...] = field(
        default=(),
        metadata=about(form.GRID, "independent values: every combination, times every point"),
    )
    exclude: tuple[Match, ...] = field(
        default=(), metadata=about(form.MATCHES, "what is left out of points times grid")
    )
    profiles: tuple[Profile, ...] = field(
        metadata=about(
            form.PROFILES,
            "named parts of the variants; `smoke`, `dev` and `release` hold something "
            "of every backend",
        )
    )
    dimensions: tuple[Dimension, ...] = field(
        default=(),
        metadata=about(
            form.mapping_of("name to dimension", form.named("dimension")),
            "the run-time sizes that shapes name",
        ),
    )
    tensors: tuple[Tensor, ...] = field(
        metadata=about(
            form.mapping_of("name to tensor", form.named("tensor")),
            "the tensor arguments, in calling order",
        )
    )
    scalars: tuple[Scalar, ...] = field(
        default=(),
        metadata=about(
            form.mapping_of("name to scalar", form.named("scalar")),
            "the run-time numbers, in calling order after the tensors",
        ),
    )
    backends: tuple[Backend, ...] = field(
        metadata=about(
            form.mapping_of(
                "backend to its part",
                {
                    "properties": {
                        name: {
                            "$ref": "#/$defs/backend",
                            "properties": {"archs": {"items": {"enum": list(KNOWN_ARCHS[name])}}},
                        }
                        for name in SPEC_BACKENDS
                    },
                    "additionalProperties": False,
                },
            ),
            "`cuda`, `ascend` or both; `ascend-sim` follows from `ascend`",
        )
    )
