"""The logger of the runtime. ``TILEWHEEL_LOG`` gives its level; unset, the application decides."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

LEVELS = ("debug", "info", "warning", "error")

logger = logging.getLogger("tilewheel")


def configure(environment: Mapping[str, str] = os.environ) -> None:
    """Set the level that ``TILEWHEEL_LOG`` names and write to standard error."""
    text = environment.get("TILEWHEEL_LOG", "")
    if not text:
        return
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("tilewheel %(levelname)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    if text.lower() in LEVELS:
        logger.setLevel(text.upper())
    else:
        logger.warning("TILEWHEEL_LOG: is %r, must be one of %s", text, ", ".join(LEVELS))
