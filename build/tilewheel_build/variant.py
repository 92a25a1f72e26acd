"""Variants: an operator with every parameter bound, for one target. Pure functions."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tilewheel.key import ANY, Key, Target, Value
from tilewheel_build.dtypes import DTYPES
from tilewheel_build.errors import OptionError
from tilewheel_build.grid import backend_bindings, covers
from tilewheel_build.spec_errors import choice, guess
from tilewheel_build.spec_fields import KNOWN_ARCHS
from tilewheel_build.spec_types import Backend, OperatorSpec, Parameter, Tensor

NUM_NEAREST = 5


class SelectionError(LookupError):
    """No variant is what the command line asks for, though all its names are known."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One unit of work of the build.

    ``backend`` is the part of the spec that it comes from, so ``ascend`` for an ``ascend-sim``
    key; what the variant is built for is ``key.target``. ``kernel`` is the kernel's file, relative
    to ``kernels/tilewheel_kernels``.
    """

    spec: OperatorSpec
    key: Key
    kernel: str
    backend: Backend


def expand(
    spec: OperatorSpec, backend: str, archs: Sequence[str] | None = None
) -> tuple[Variant, ...]:
    """Return the variants of a spec for one backend, sorted by key.

    Args:
        spec: the operator's spec.
        backend: ``cuda``, ``ascend`` or ``ascend-sim``; the last takes the spec's ``ascend`` part.
        archs: architectures to keep, all of the spec's if None; those of other backends are
            passed over, so that one list serves every backend of a build.

    Returns:
        The variants; none where the spec lacks the backend, or each of the architectures.

    Raises:
        OptionError: a backend or an architecture is unknown to tilewheel.
    """
    if backend not in KNOWN_ARCHS:
        raise OptionError(_unknown("backend", backend, KNOWN_ARCHS))
    known_archs = {arch for known in KNOWN_ARCHS.values() for arch in known}
    for arch in archs or ():
        if arch not in known_archs:
            raise OptionError(_unknown("arch", arch, known_archs))
    section = "ascend" if backend == "ascend-sim" else backend
    variants = [
        Variant(
            spec=spec,
            key=Key(
                operator=spec.operator,
                parameters=bindings,
                target=Target(backend=backend, arch=arch),
            ),
            kernel=part.kernel,
            backend=part,
        )
        for part in spec.backends
        if part.name == section
        for arch in part.archs
        if archs is None or arch in archs
        for bindings in backend_bindings(spec, part)
    ]
    return tuple(sorted(variants, key=lambda variant: variant.key.sort_key()))


def select(
    variants: Iterable[Variant],
    *,
    profile: str | None,
    only: Sequence[str],
    other_targets: Sequence[Variant] = (),
) -> tuple[Variant, ...]:
    """Return the variants of a profile that match one of the globs, in the given order.

    No profile takes every variant, and so does an empty list of globs. Globs are matched against
    the whole key and see the case of letters. ``other_targets`` are what could be asked for
    instead: an operator need not exist for every backend, and then the error says where it does.

    Raises:
        OptionError: no spec has the profile.
        SelectionError: a glob matches nothing.
    """
    everything = tuple(variants)
    if not everything:
        return ()
    chosen = everything
    if profile is not None:
        known = {item.name for variant in everything for item in variant.spec.profiles}
        if profile not in known:
            raise OptionError(_unknown("profile", profile, known))
        chosen = tuple(variant for variant in everything if profile in profiles_of(variant))
    for glob in only:
        if not _matching(chosen, glob):
            raise SelectionError(_no_match(glob, profile, chosen, everything, other_targets))
    if not only:
        return chosen
    names = {str(variant.key) for glob in only for variant in _matching(chosen, glob)}
    return tuple(variant for variant in chosen if str(variant.key) in names)


def profiles_of(variant: Variant) -> tuple[str, ...]:
    """Return the names of the profiles that contain the variant, sorted."""
    return tuple(
        sorted(
            profile.name
            for profile in variant.spec.profiles
            if any(covers(match, variant.key.parameters) for match in profile.matches)
        )
    )


def parameters(variant: Variant) -> tuple[Parameter, ...]:
    """Return the operator's and the backend's parameters, sorted by name as in the key."""
    declared = (*variant.spec.parameters, *variant.backend.parameters)
    return tuple(sorted(declared, key=lambda parameter: parameter.name))


def bindings(variant: Variant) -> dict[str, Value | None]:
    """Return the arguments of the kernel's factory: None stands for ``any``."""
    return {name: None if value == ANY else value for name, value in variant.key.parameters}


def limits(variant: Variant) -> tuple[tuple[str, int, int], ...]:
    """Return (name, least, largest value) of each parameter that is decided at run time."""
    bound = bindings(variant)
    return tuple(
        (parameter.name, parameter.minimum, parameter.maximum)
        for parameter in parameters(variant)
        if bound[parameter.name] is None
        and parameter.minimum is not None
        and parameter.maximum is not None
    )


def multiples(variant: Variant) -> tuple[tuple[str, int], ...]:
    """Return (name, divisor) of each parameter that is decided at run time and must have one."""
    bound = bindings(variant)
    return tuple(
        (parameter.name, parameter.multiple_of)
        for parameter in parameters(variant)
        if bound[parameter.name] is None and parameter.multiple_of != 1
    )


def tensors(variant: Variant) -> tuple[Tensor, ...]:
    """Return the tensors that the variant has, in calling order, with their dtypes resolved."""
    bound = bindings(variant)
    return tuple(
        tensor if tensor.dtype in DTYPES else replace(tensor, dtype=str(bound[tensor.dtype]))
        for tensor in variant.spec.tensors
        if covers(tensor.when, variant.key.parameters)
    )


def _matching(variants: Iterable[Variant], glob: str) -> tuple[Variant, ...]:
    return tuple(v for v in variants if fnmatch.fnmatchcase(str(v.key), glob))


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    names = tuple(known)
    action = guess(name, names)
    return f"{kind}: is {name!r}, {choice(name, names)}" + (f"\nhint: {action}" if action else "")


def _no_match(
    glob: str,
    profile: str | None,
    chosen: Sequence[Variant],
    everything: Sequence[Variant],
    other_targets: Sequence[Variant],
) -> str:
    scope = f" of profile {profile}" if profile is not None else ""
    message = f"only: {glob!r} matches none of {len(chosen)} variants{scope}, must match one"
    if elsewhere := _matching(everything, glob):
        names = sorted({name for variant in elsewhere for name in profiles_of(variant)})
        return f"{message}\nhint: choose a profile that holds it: {', '.join(names)}"
    if there := _matching(other_targets, glob):
        names = sorted({variant.key.target.backend for variant in there})
        return f"{message}\nhint: choose a target that has it: {', '.join(names)}"
    if glob in {variant.key.operator for variant in chosen}:
        return f"{message}\nhint: keys go on after the operator's name: write '{glob}-*'"
    keys = [str(variant.key) for variant in chosen]
    near = difflib.get_close_matches(glob.replace("*", ""), keys, n=NUM_NEAREST, cutoff=0.0)
    if not near:
        return message
    return "\n".join([f"{message}; the nearest are", *(f"  {key}" for key in near)])
