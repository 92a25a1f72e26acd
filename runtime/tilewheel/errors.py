"""Exceptions that callers catch. Each derives from the built-in that a caller would expect."""

from __future__ import annotations

from collections.abc import Iterable


class KeyFormatError(ValueError):
    """A key, target or parameter is not written as the key grammar says."""


class ManifestError(ValueError):
    """A manifest cannot be read: wrong major version, wrong type, bad path, too large."""


class NoArtifactError(LookupError):
    """No installed artifact fits the request; the message gives each rejection and its reason."""


class ArtifactLoadError(OSError):
    """An artifact exists but cannot be loaded: missing, corrupt, tampered with, or no driver."""


def nearest(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the known names, those most like ``name`` first, for a message about a wrong one."""
    import difflib

    def unlikeness(candidate: str) -> tuple[float, str]:
        return (-difflib.SequenceMatcher(None, name, candidate).ratio(), candidate)

    return tuple(sorted(set(known), key=unlikeness))
