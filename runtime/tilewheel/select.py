"""Which artifact serves a request: a pure function of the entries, the request and the device.

Exact parameters come first, then variants that leave some to the run time (``any``), the most
specific first. A parameter that the request does not give and the device has as a property, such
as ``num_vec_cores``, takes the largest built value that the device has, then ``any``. Nothing is
ever compiled: a request that nothing serves is answered with the reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewheel.device import PROPERTIES, Device
from tilewheel.discovery import Catalog, Entry
from tilewheel.errors import nearest
from tilewheel.key import ANY, Value, format_parameters, format_value
from tilewheel.manifest import Artifact

_SHOWN_REJECTIONS = 5

_WHEELS = {"cuda": "tilewheel-cu13"}
"""Packages of artifacts that are not called as their backend is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An operator and the values of its parameters, sorted by name."""

    operator: str
    parameters: tuple[tuple[str, Value], ...]

    def __str__(self) -> str:
        return f"{self.operator} {format_parameters(self.parameters)}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """An artifact of the operator that does not serve the request, and every reason why."""

    entry: Entry
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The answer to a request. ``choice`` is None where nothing fits; ``str()`` explains it.

    ``rejections`` are ordered from the nearest to the farthest, ``alternatives`` are artifacts
    that would also serve, in order of preference. ``command`` builds what is missing.
    """

    request: Request
    device: Device
    choice: Entry | None
    alternatives: tuple[Entry, ...]
    rejections: tuple[Rejection, ...]
    known_operators: tuple[str, ...]
    command: str
    problems: tuple[str, ...]

    def __str__(self) -> str:
        if self.choice is not None:
            lines = [f"{self.request} on {self.device}: {self.choice.artifact.key}"]
            lines.append(f"  from {self.choice.source}: {self.choice.path}")
            lines += [f"  also fits: {entry.artifact.key}" for entry in self.alternatives]
        elif not self.known_operators:
            lines = [f"{self.request} on {self.device}: no artifacts are installed"]
        elif self.request.operator not in self.known_operators:
            known = ", ".join(nearest(self.request.operator, self.known_operators))
            lines = [f"operator: is {self.request.operator!r}, must be one of: {known}"]
        else:
            lines = [f"{self.request} on {self.device}: no artifact fits"]
        for rejection in self.rejections[:_SHOWN_REJECTIONS]:
            lines.append(f"  {rejection.entry.artifact.key}: {'; '.join(rejection.reasons)}")
        if len(self.rejections) > _SHOWN_REJECTIONS:
            lines.append(f"  and {len(self.rejections) - _SHOWN_REJECTIONS} more")
        lines += [f"problem: {problem}" for problem in self.problems]
        if self.choice is None:
            lines += self._hints()
        return "\n".join(lines)

    def _hints(self) -> list[str]:
        if not self.known_operators:
            wheel = _WHEELS.get(self.device.backend, f"tilewheel-{self.device.backend}")
            return [f"hint: pip install {wheel}, or build here: {self.command}"]
        if self.request.operator not in self.known_operators:
            return []
        return [f"hint: {self.command}"]


def select(catalog: Catalog, request: Request, device: Device) -> Selection:
    """Return the artifact that serves ``request`` on ``device``, or why none does."""
    accepted: list[tuple[tuple[int, int], Entry]] = []
    rejected: list[tuple[tuple[bool, int, int, str], Rejection]] = []
    for entry in catalog.entries:
        if entry.artifact.key.operator != request.operator:
            continue
        reasons, distance = misfits(entry.artifact, request, device)
        if reasons:
            foreign = entry.artifact.key.target.backend != device.backend
            nearness = (foreign, len(reasons), distance, str(entry.artifact.key))
            rejected.append((nearness, Rejection(entry=entry, reasons=tuple(reasons))))
        else:
            accepted.append((_preference(entry.artifact, request), entry))
    # Both sorts are stable, so that of equals the first in the catalogue, an overlay, wins.
    fitting = [entry for _, entry in sorted(accepted, key=lambda pair: pair[0])]
    rejections = tuple(item for _, item in sorted(rejected, key=lambda pair: pair[0]))
    return Selection(
        request=request,
        device=device,
        choice=fitting[0] if fitting else None,
        alternatives=tuple(fitting[1:]),
        rejections=rejections,
        known_operators=tuple(sorted({e.artifact.key.operator for e in catalog.entries})),
        command=build_command(request, device, rejections),
        problems=catalog.problems,
    )


def build_command(request: Request, device: Device, rejections: Sequence[Rejection] = ()) -> str:
    """Return the command that builds what ``request`` asks for on ``device``."""
    values = dict(request.parameters)
    # Parameters that only a backend has stand between the others in its keys.
    for rejection in rejections:
        if rejection.entry.artifact.key.target.backend == device.backend:
            own = [name for name, _ in rejection.entry.artifact.key.parameters]
            values = {**dict.fromkeys(own, "*"), **values}
            break
    bound = [f"{name}={format_value(values[name])}" for name in sorted(values)]
    pattern = "-".join([request.operator, *bound, "*"])
    return (
        f"python -m tilewheel_build build --target {device.backend} "
        f"--archs {device.arch} --only '{pattern}'"
    )


def misfits(artifact: Artifact, request: Request, device: Device) -> tuple[list[str], int]:
    """Return every reason against the artifact, and how far its numbers are from the request's."""
    reasons: list[str] = []
    target = artifact.key.target
    is_foreign = target.backend != device.backend
    if is_foreign:
        reasons.append(f"backend is {target.backend}, device has {device.backend}")
    elif target.arch != device.arch:
        reasons.append(f"arch is {target.arch}, device has {device.arch}")
    else:
        reasons += _driver_reasons(artifact.minimum_driver, device)
    wanted = dict(request.parameters)
    limits = {name: (low, high) for name, low, high in artifact.limits}
    multiples = dict(artifact.multiples)
    distance = 0
    for name, built in artifact.key.parameters:
        if name not in wanted:
            if is_foreign and name in PROPERTIES.get(target.backend, ()):
                continue  # what another backend reads off its devices, this one need not have
            reasons += _device_reasons(name, built, limits.get(name), device)
        elif built == ANY:
            reasons += _limit_reasons(name, wanted[name], limits.get(name), "request")
            reasons += _multiple_reasons(name, wanted[name], multiples.get(name, 1))
        elif not _same(built, wanted[name]):
            reasons.append(
                f"{name} is {format_value(built)}, request has {format_value(wanted[name])}"
            )
            distance += _difference(built, wanted[name])
    own = dict(artifact.key.parameters)
    reasons += [
        f"{name} is no parameter, request has {format_value(value)}"
        for name, value in request.parameters
        if name not in own
    ]
    return reasons, distance


def _driver_reasons(minimum: str, device: Device) -> list[str]:
    have = device.property("driver")
    branch = minimum.partition(".")[0]
    if have is None or not branch.isdecimal() or have >= int(branch):
        return []
    return [f"minimum driver is {minimum}, device has {have}"]


def _device_reasons(
    name: str, built: Value, limits: tuple[int, int] | None, device: Device
) -> list[str]:
    """Judge a parameter that the request leaves to the device."""
    have = device.property(name)
    if built == ANY and name in PROPERTIES.get(device.backend, ()):
        return [] if have is None else _limit_reasons(name, have, limits, "device")
    if have is None and name in PROPERTIES.get(device.backend, ()):
        return []  # not known, e.g. of a target that is only named: a device may have this value
    if have is None:
        return [f"{name} is {format_value(built)}, request does not give it"]
    if isinstance(built, int) and built > have:
        return [f"{name} is {format_value(built)}, device has {have}"]
    return []


def _limit_reasons(name: str, value: Value, limits: tuple[int, int] | None, side: str) -> list[str]:
    if limits is None or value == ANY:
        return []
    low, high = limits
    if not isinstance(value, int) or isinstance(value, bool):
        return [f"{name} is any integer, {side} has {format_value(value)}"]
    if value > high:
        return [f"{name} is any up to {high}, {side} has {value}"]
    if value < low:
        return [f"{name} is any from {low}, {side} has {value}"]
    return []


def _multiple_reasons(name: str, value: Value, multiple: int) -> list[str]:
    if isinstance(value, int) and value % multiple:
        return [f"{name} is any multiple of {multiple}, request has {value}"]
    return []


def _preference(artifact: Artifact, request: Request) -> tuple[int, int]:
    """Order fitting artifacts: fewest run-time parameters, then the largest device value."""
    wanted = dict(request.parameters)
    num_any = 0
    device_rank = 0
    for name, built in artifact.key.parameters:
        if name in wanted:
            num_any += built == ANY and wanted[name] != ANY
        elif isinstance(built, int):
            device_rank -= built
        else:
            device_rank += 1
    return num_any, device_rank


def _same(built: Value, wanted: Value) -> bool:
    # True equals 1 to Python; to a key they are different values.
    return built == wanted and isinstance(built, bool) == isinstance(wanted, bool)


def _difference(built: Value, wanted: Value) -> int:
    return abs(built - wanted) if isinstance(built, int) and isinstance(wanted, int) else 0
