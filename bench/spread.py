"""What a record keeps of repeated times: median, least, greatest and each of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def spread(times: Sequence[float], unit: str) -> dict[str, Any]:
    """Return the fields of a record for repeated times, whose names end in the unit.

    ``compare.py`` reads them; each repeat is kept because one outlier makes the range useless.
    """
    return {
        f"median_{unit}": round(statistics.median(times), 3),
        f"min_{unit}": round(min(times), 3),
        f"max_{unit}": round(max(times), 3),
        f"times_{unit}": [round(value, 3) for value in times],
    }
