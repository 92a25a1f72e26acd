"""The functions that work on artifacts rather than on tensors."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

from tilewheel import discovery, loader
from tilewheel.backend import active
from tilewheel.device import PROPERTIES, Device, resolve
from tilewheel.discovery import Entry
from tilewheel.errors import ArtifactLoadError, KeyFormatError, NoArtifactError, nearest
from tilewheel.key import Key, Value, is_value, sort_parameters
from tilewheel.loader import Kernel
from tilewheel.log import logger
from tilewheel.select import Request, Selection, select


@dataclass(frozen=True, slots=True, kw_only=True)
class Preloaded:
    """One artifact that ``preload`` took: ``error`` is None, or says why it did not load."""

    key: Key
    error: str | None = None


def load(operator: str, *, device: object = None, **parameters: Value) -> Kernel:
    """Return the bare artifact of an operator, ready to be called with tensors.

    Args:
        operator: the operator's name, e.g. ``topk_gate``.
        device: a torch device or its text, ``ascend-sim``, a ``Device``, or None for the backend
            selected with ``tilewheel.backend``, else this machine's current device.
        **parameters: the operator's compile-time values.

    Raises:
        NoArtifactError: no installed artifact fits; the message gives the reasons.
        ArtifactLoadError: the artifact that fits cannot be loaded.
        RuntimeError: the machine has no such device.
        ValueError: ``device`` names no device, or a parameter's value cannot stand in a key.
    """
    selection = why(operator, device=device, **parameters)
    if selection.choice is None:
        raise NoArtifactError(str(selection))
    return loader.load(selection.choice, selection.device)


def why(operator: str, *, device: object = None, **parameters: Value) -> Selection:
    """Return which artifact serves a request, or why none does; ``str()`` of it explains.

    Arguments and errors are those of ``load``. Beside them, ``device`` may be a target such as
    ``cuda-sm_90a`` that is not in this machine. Nothing is loaded.
    """
    if not isinstance(operator, str):
        raise TypeError(f"operator: is {operator!r}, must be a str")
    values = {name: _value(name, value) for name, value in parameters.items()}
    request = Request(operator=operator, parameters=sort_parameters(values))
    return select(discovery.catalog(), request, _resolve(device))


def _value(name: str, value: object) -> Value:
    """Return a parameter's value as a key holds it; integers of other libraries are ints."""
    if not isinstance(value, (bool, int, str)) and hasattr(value, "__index__"):
        value = index(value)
    if not is_value(value):
        raise KeyFormatError(
            f"{name}: is {value!r}, must be an int, a bool or a word of [A-Za-z0-9_]+"
        )
    return value


def artifacts(operator: str | None = None) -> tuple[Entry, ...]:
    """Return the installed artifacts, all or those of one operator, sorted by key."""
    entries = discovery.catalog().entries
    wanted = [e for e in entries if operator is None or e.artifact.key.operator == operator]
    return tuple(sorted(wanted, key=lambda entry: entry.artifact.key.sort_key()))


def preload(
    *,
    device: object = None,
    profile: str | None = None,
    operators: tuple[str, ...] | None = None,
) -> tuple[Preloaded, ...]:
    """Load every artifact of a profile onto a device, before serving or capturing a graph.

    Args:
        device: as for ``load``.
        profile: the name of a profile, e.g. ``deepseek-v4-flash``; None takes all artifacts.
        operators: take only these operators; None takes all.

    Returns:
        One ``Preloaded`` for each artifact that the device would use, sorted by key. An artifact
        that cannot be loaded is in it with its error. Empty where nothing fits or the machine has
        no such device; that is logged as a warning.

    Raises:
        ValueError: ``device`` names no device.
        TypeError: ``operators`` is one name.
    """
    if isinstance(operators, str):
        raise TypeError(
            f"operators: is {operators!r}, must be a tuple of names\nhint: write ({operators!r},)"
        )
    try:
        described = _resolve(device)
    except RuntimeError as error:
        logger.warning("preload: %s", error)
        return ()
    chosen = _choose(described, profile, operators)
    if not chosen:
        _warn_nothing_chosen(described, profile)
    return tuple(_preload(entry, described) for entry in chosen)


def _resolve(device: object) -> Device:
    return resolve(active() if device is None else device)


def _choose(device: Device, profile: str | None, operators: tuple[str, ...] | None) -> list[Entry]:
    """Return the entries that requests of the profile would select, each once, sorted by key."""
    catalog = discovery.catalog()
    properties = PROPERTIES.get(device.backend, ())
    chosen: dict[Key, Entry] = {}
    for entry in catalog.entries:
        key = entry.artifact.key
        if profile is not None and profile not in entry.artifact.profiles:
            continue
        if operators is not None and key.operator not in operators:
            continue
        own = tuple(pair for pair in key.parameters if pair[0] not in properties)
        choice = select(catalog, Request(operator=key.operator, parameters=own), device).choice
        if choice is not None:
            chosen[choice.artifact.key] = choice
    return sorted(chosen.values(), key=lambda entry: entry.artifact.key.sort_key())


def _warn_nothing_chosen(device: Device, profile: str | None) -> None:
    entries = discovery.catalog().entries
    known = {name for entry in entries for name in entry.artifact.profiles}
    if profile is None or profile in known or not known:
        logger.warning("preload: no installed artifact fits %s", device)
    else:
        names = ", ".join(nearest(profile, known))
        logger.warning("preload: profile is %r, must be one of: %s", profile, names)


def _preload(entry: Entry, device: Device) -> Preloaded:
    try:
        loader.load(entry, device).prepare()
    except ArtifactLoadError as error:
        logger.warning("preload: %s", error)
        return Preloaded(key=entry.artifact.key, error=str(error))
    return Preloaded(key=entry.artifact.key)
