"""From a model to a grid: the keys that it needs, which of them are installed, and a profile."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tilewheel.discovery import catalog
from tilewheel.key import ANY, Value, format_value
from tilewheel_build.errors import OptionError
from tilewheel_build.grid import domain_error
from tilewheel_build.model_config import Model, parse_model
from tilewheel_build.model_needs import Need, limitations, needs
from tilewheel_build.profile_file import is_profile_file
from tilewheel_build.spec_errors import show
from tilewheel_build.spec_fields import KNOWN_ARCHS, PROFILE_PATTERN
from tilewheel_build.spec_types import Match, OperatorSpec
from tilewheel_build.variant import SelectionError, Variant, expand, limits, multiples, parameters

CONFIG = "config.json"
"""What every model calls its configuration: the directory tells them apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The variants of one backend that answer a need: those that selection prefers, and others.

    ``is_generic`` says that the preferred ones leave a value to the run time; ``reason`` why there
    are none.
    """

    backend: str
    variants: tuple[Variant, ...]
    others: tuple[Variant, ...] = ()
    is_generic: bool = False
    reason: str = ""


def serve(need: Need, spec: OperatorSpec, backend: str, archs: Sequence[str] | None) -> Served:
    """Return how one backend answers a need: by exact variants, else by generic ones."""
    variants = expand(spec, backend, archs)
    fitting = [(_num_any(need, variant), variant) for variant in variants if fits(need, variant)]
    if not fitting:
        place = f"{spec.path} has nothing for {' '.join([backend, *(archs or ())])}"
        reason = _why_not(need, variants) if variants else place
        return Served(backend=backend, variants=(), reason=reason)
    least = min(count for count, _ in fitting)
    return Served(
        backend=backend,
        variants=tuple(variant for count, variant in fitting if count == least),
        others=tuple(variant for count, variant in fitting if count > least),
        is_generic=least > 0,
    )


def fits(need: Need, variant: Variant) -> bool:
    """Return whether a variant binds each value that is needed, or leaves it to the run time."""
    built = dict(variant.key.parameters)
    bounds = {name: (low, high) for name, low, high in limits(variant)}
    divisors = dict(multiples(variant))
    for name, value in need.parameters:
        if name not in built:
            return False
        if built[name] == ANY:
            low, high = bounds[name]
            in_bounds = isinstance(value, int) and low <= value <= high
            if not in_bounds or int(value) % divisors.get(name, 1):
                return False
        # 1 and true are equal in Python, so the types are compared too.
        elif (type(built[name]), built[name]) != (type(value), value):
            return False
    return True


def _num_any(need: Need, variant: Variant) -> int:
    built = dict(variant.key.parameters)
    return sum(built[name] == ANY for name, _ in need.parameters)


def _why_not(need: Need, variants: Sequence[Variant]) -> str:
    """Return what keeps every variant from serving: a value out of range, or not in the grid."""
    known = {parameter.name: parameter for parameter in parameters(variants[0])}
    reasons = [f"{name}: is no parameter" for name, _ in need.parameters if name not in known]
    for name, value in need.parameters:
        demand = domain_error(known[name], value) if name in known else None
        if demand is not None:
            reasons.append(f"{name}: is {show(value)}, {demand}")
    return "; ".join(reasons) or f"{variants[0].spec.path} has no such variant"


def profile_matches(need: Need, spec: OperatorSpec) -> tuple[Match, ...]:
    """Return the partial matches that take what serves a need, on any backend.

    A match means every backend. Where one backend has variants of its own for what another leaves
    to the run time, the matches name the other's own parameters too, so that they mean it alone.
    """
    names = {name for name, _ in need.parameters}
    served = [serve(need, spec, backend, None).variants for backend in need.backends]
    plain = [_bound(variants, names) for variants in served if variants]
    if len(set(plain)) == 1:
        return plain[0]
    return tuple(
        match
        for variants in served
        if variants
        for match in _bound(
            variants, names | {item.name for item in variants[0].backend.parameters}
        )
    )


def _bound(variants: Iterable[Variant], names: Collection[str]) -> tuple[Match, ...]:
    """Return how the variants bind some of their parameters, each way once."""
    bound = [tuple(p for p in variant.key.parameters if p[0] in names) for variant in variants]
    return tuple(dict.fromkeys(bound))


def profile_yaml(model: Model, specs: Iterable[OperatorSpec]) -> str:
    """Return the profile of a model, as ``--profile`` takes it; empty where it needs nothing.

    It holds what any backend needs and depends on nothing but the model and the specs.
    """
    lines = []
    for spec in specs:
        wanted = [
            match for need in needs(model, spec.operator) for match in profile_matches(need, spec)
        ]
        if wanted:
            lines.append(f"{spec.operator}:")
            lines += [f"  - {{{_flow(match)}}}" for match in dict.fromkeys(wanted)]
    if not lines:
        return ""
    title = f"# {model}"
    return "\n".join([title, *lines]) + "\n"


def _flow(match: Iterable[tuple[str, Value]]) -> str:
    return ", ".join(f"{name}: {format_value(value)}" for name, value in match)


def report(
    model: Model,
    specs: Sequence[OperatorSpec],
    *,
    backends: Sequence[str],
    archs: Sequence[str] | None,
    installed: frozenset[str],
) -> list[str]:
    """Return the lines that say, for each operator, which keys a model needs and has."""
    lines: list[str] = []
    idle: list[str] = []
    generic: list[str] = []
    states: dict[str, str] = {}
    for spec in specs:
        found = needs(model, spec.operator)
        if not found:
            idle.append(spec.operator)
        for need in found:
            served = [
                serve(need, spec, backend, archs)
                for backend in backends
                if backend.removesuffix("-sim") in need.backends
            ]
            # Architectures are those of one backend only: of the others nothing was asked.
            rows = [
                row
                for row in served
                if archs is None or not set(archs).isdisjoint(KNOWN_ARCHS[row.backend])
            ]
            lines += [str(need)] if rows else []
            for row in rows:
                lines += _row_lines(need, row, installed, states)
            if places := [row.backend for row in rows if row.is_generic]:
                everywhere = len(places) == len(rows)
                generic.append(str(need) if everywhere else f"{need} on {', '.join(places)}")
    if idle:
        lines.append(f"not needed: {', '.join(idle)}")
    return [*lines, *_summary(list(states.values()), generic)]


def _row_lines(
    need: Need, row: Served, installed: frozenset[str], states: dict[str, str]
) -> list[str]:
    """Return a line for each key of one backend; note in ``states`` what becomes of the key."""
    if row.reason:
        return [f"  no variant     {row.backend}: {row.reason}"]
    lines = []
    for variant in row.variants:
        key = str(variant.key)
        state, note = "installed", "  (generic)" if row.is_generic else ""
        if key not in installed:
            state = "not installed"
            stand_in = _stand_in(need, variant, row.others, installed)
            note += f"  (served by {stand_in})" if stand_in else ""
            states[key] = "served" if stand_in else "missing"
        else:
            states[key] = "installed"
        lines.append(f"  {state:13}  {key}{note}")
    return lines


def _stand_in(
    need: Need, variant: Variant, others: Iterable[Variant], installed: frozenset[str]
) -> str | None:
    """Return the installed key that serves in place of a variant of the same target."""
    names = {name for name, _ in need.parameters}

    def rest(item: Variant) -> tuple[object, ...]:
        return item.key.target, [p for p in item.key.parameters if p[0] not in names]

    keys = [str(other.key) for other in others if rest(other) == rest(variant)]
    return next((key for key in keys if key in installed), None)


def _summary(states: Sequence[str], generic: Sequence[str]) -> list[str]:
    lines = [f"{states.count('installed')} of {len(states)} keys are installed"]
    if count := states.count("served"):
        lines.append(f"{count} more are served by installed generic variants")
    if generic:
        lines.append(f"only generic variants for: {'; '.join(generic)}")
    return lines


def profile_name(config: Path) -> str:
    """Return the name of a model's profile: of the file, or of its directory for config.json."""
    stem = config.resolve().parent.name if config.name == CONFIG else config.stem
    return re.sub(r"[^a-z0-9.]+", "-", stem.lower()).strip("-.") or "model"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add what ``grid`` takes beside targets and architectures."""
    command.add_argument(
        "--model", type=Path, required=True, metavar="PATH", help="a config.json, or its directory"
    )
    command.add_argument(
        "--tensor-parallel",
        type=int,
        default=1,
        metavar="N",
        help="devices that share each layer (default: %(default)s)",
    )
    command.add_argument(
        "--write", type=Path, metavar="PATH", help="the profile (default: <out>/profiles/*.yaml)"
    )


def run(
    options: argparse.Namespace,
    specs: Sequence[OperatorSpec],
    *,
    out: Path,
    backends: Sequence[str],
    errors: Console,
) -> None:
    """Print what a model needs, and write its profile.

    Raises:
        OptionError: the configuration cannot be read, or the profile not written.
        SelectionError: the model needs none of the operators.
    """
    if options.tensor_parallel < 1:
        raise OptionError(f"--tensor-parallel: is {options.tensor_parallel}, must be at least 1")
    config: Path = options.model / CONFIG if options.model.is_dir() else options.model
    path: Path = options.write or out / "profiles" / f"{profile_name(config)}.yaml"
    if not is_profile_file(path.name) or re.fullmatch(PROFILE_PATTERN, path.stem) is None:
        raise OptionError(f"--write: is {path.name}, must be [a-z0-9.-] and end in .yaml")
    model = _read(config)
    found = catalog()
    for problem in found.problems:
        errors.print(f"problem: {problem}")
    installed = frozenset(str(entry.artifact.key) for entry in found.entries)
    archs = options.archs.split(",") if options.archs else None
    print(f"{model}; tensor parallel {options.tensor_parallel}")
    for line in report(model, specs, backends=backends, archs=archs, installed=installed):
        print(line)
    limited = limitations(
        model,
        tensor_parallel=options.tensor_parallel,
        has_ascend=any(name != "cuda" for name in backends),
    )
    for title, notes in (("not served", limited), ("not understood", model.unknown)):
        for note in notes:
            print(f"{title}: {note}")
    text = profile_yaml(model, specs)
    if not text:
        raise SelectionError(f"{config}: asks for no operator of this checkout, must ask for one")
    _write(path, text)
    print(f"wrote {_shown(path)}")
    print(f"hint: make build PROFILE={_shown(path)}")


def _read(config: Path) -> Model:
    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError(f"--model: {config} cannot be read: {reason}") from error
    return parse_model(text, where=str(config))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--write: {path} cannot be written: {error.strerror}") from error


def _shown(path: Path) -> Path:
    """Return a path as one types it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
