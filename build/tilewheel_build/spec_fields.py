"""What a field of a spec may hold: in words, as JSON Schema and as a test, all in one place.

The dataclasses of ``spec_types`` attach a ``Form`` and a meaning to each field; the parser, the
schema and the reference page are made from these.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tilewheel.key import ANY, is_name, is_value
from tilewheel_build.dtypes import DTYPES

KNOWN_ARCHS: Mapping[str, tuple[str, ...]] = {
    "cuda": ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a"),
    "ascend": ("dav_3510",),
    "ascend-sim": ("dav_3510",),
}
"""Each backend and the architectures that it can build for."""

SPEC_BACKENDS = ("cuda", "ascend")
"""The backends that a spec names; ``ascend-sim`` runs the kernels of ``ascend``."""

SCALAR_DTYPES = tuple(name for name, dtype in DTYPES.items() if dtype.c_type)
REQUIRED_PROFILES = ("smoke", "dev", "release")

NAME_PATTERN = "^[a-z][a-z0-9]*(_[a-z0-9]+)*$"
PROFILE_PATTERN = "^[a-z0-9.-]+$"
KERNEL_PATTERN = r"^([A-Za-z0-9_]+/)*[A-Za-z0-9_]+\.py$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a field may hold; ``choices`` is set where that is one of a few names."""

    words: str
    schema: Mapping[str, object]
    accepts: Callable[[object], bool]
    choices: tuple[str, ...] = ()


def about(form: Form, meaning: str, *, of_backend: bool = False) -> dict[str, object]:
    """Return the metadata of a field; ``of_backend`` marks one that only a backend's part has."""
    return {"form": form, "meaning": meaning, "of_backend": of_backend}


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlField:
    """One field as the file writes it."""

    name: str
    form: Form
    meaning: str
    required: bool
    default: object


def yaml_fields(kind: type, *, of_backend: bool = False) -> dict[str, YamlField]:
    """Return the fields that the file writes for a dataclass, in their order."""
    found = {}
    for field in dataclasses.fields(kind):
        if "form" not in field.metadata or (field.metadata["of_backend"] and not of_backend):
            continue
        default = None if field.default is dataclasses.MISSING else field.default
        found[field.name] = YamlField(
            name=field.name,
            form=field.metadata["form"],
            meaning=field.metadata["meaning"],
            required=field.default is dataclasses.MISSING or field.metadata["of_backend"],
            default=default,
        )
    return found


def is_int(value: object) -> bool:
    """Return whether ``value`` is an integer; to a spec a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether ``value`` is a finite number."""
    return is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.strip() != ""


def _is_line(value: object) -> bool:
    return isinstance(value, str) and _is_text(value) and "\n" not in value.strip("\n")


def _is_kernel(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(KERNEL_PATTERN, value) is not None


def one_of(names: Iterable[str]) -> Form:
    """Return the form of a field that holds one of a few names."""
    choices = tuple(names)
    return Form(
        words=f"one of {', '.join(choices)}",
        schema={"enum": list(choices)},
        accepts=lambda value: isinstance(value, str) and value in choices,
        choices=choices,
    )


def list_of(words: str, items: Mapping[str, object]) -> Form:
    """Return the form of a non-empty list; its items are checked one by one later."""
    return Form(
        words=f"a non-empty list of {words}",
        schema={"type": "array", "minItems": 1, "items": items},
        accepts=lambda value: isinstance(value, list) and bool(value),
    )


def mapping_of(words: str, schema: Mapping[str, object]) -> Form:
    """Return the form of a non-empty mapping; its entries are checked one by one later."""
    return Form(
        words=f"a non-empty mapping from {words}",
        schema={"type": "object", "minProperties": 1, **schema},
        accepts=lambda value: isinstance(value, dict) and bool(value),
    )


def named(definition: str) -> dict[str, object]:
    """Return the schema of a mapping from snake_case names to one of the schema's definitions."""
    return {
        "propertyNames": {"pattern": NAME_PATTERN},
        "additionalProperties": {"$ref": f"#/$defs/{definition}"},
    }


VALUE_SCHEMA = {"type": ["integer", "boolean", "string"]}
MATCH_SCHEMA = {"$ref": "#/$defs/match"}

NAME = Form(
    words="a snake_case name",
    schema={"type": "string", "pattern": NAME_PATTERN},
    accepts=lambda value: isinstance(value, str) and is_name(value),
)
TEXT = Form(words="a text", schema={"type": "string", "pattern": r"\S"}, accepts=_is_text)
LINE = Form(words="one line of text", schema=TEXT.schema, accepts=_is_line)
INTEGER = Form(words="an integer", schema={"type": "integer"}, accepts=is_int)
POSITIVE = Form(
    words="an integer of at least 1",
    schema={"type": "integer", "minimum": 1},
    accepts=lambda value: isinstance(value, int) and is_int(value) and value >= 1,
)
NATURAL = Form(
    words="an integer of at least 0",
    schema={"type": "integer", "minimum": 0},
    accepts=lambda value: isinstance(value, int) and is_int(value) and value >= 0,
)
NUMBER = Form(words="a finite number", schema={"type": "number"}, accepts=is_number)
ALIGNMENT = Form(
    words="a power of two from 1 to 128",
    schema={"enum": [1, 2, 4, 8, 16, 32, 64, 128]},
    accepts=lambda value: is_int(value) and value in (1, 2, 4, 8, 16, 32, 64, 128),
)
KERNEL = Form(
    words="the relative path of a .py file",
    schema={"type": "string", "pattern": KERNEL_PATTERN},
    accepts=_is_kernel,
)
DTYPE = Form(
    words="a dtype, or a string parameter whose choices are all dtypes",
    schema={"anyOf": [{"enum": list(DTYPES)}, {"type": "string", "pattern": NAME_PATTERN}]},
    accepts=NAME.accepts,
)
VALUES = list_of("values", VALUE_SCHEMA)
CHOICES = list_of("strings, or of integers", {"type": ["integer", "string"]})
INTEGERS = list_of("integers", {"type": "integer"})
SHAPE = Form(
    words="a list of integers, int parameters and dimensions",
    schema={
        "type": "array",
        "items": {"anyOf": [{"type": "integer", "minimum": 1}, NAME.schema]},
    },
    accepts=lambda value: isinstance(value, list),
)
MATCHES = list_of("partial matches", MATCH_SCHEMA)
MATCH = mapping_of("parameter to value", {"$ref": "#/$defs/match"})
GRID = mapping_of(
    "parameter to list of values",
    {"propertyNames": {"pattern": NAME_PATTERN}, "additionalProperties": VALUES.schema},
)
PROFILES = mapping_of(
    "profile name to `all` or a list of partial matches",
    {
        "propertyNames": {"pattern": PROFILE_PATTERN},
        "additionalProperties": {"anyOf": [{"const": "all"}, MATCHES.schema]},
        "required": list(REQUIRED_PROFILES),
    },
)


def is_choice(value: object) -> bool:
    """Return whether ``value`` may be a choice of a string parameter."""
    return isinstance(value, str) and is_value(value) and value != ANY
