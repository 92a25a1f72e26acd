"""Race detection is a switch of a library that several blocks and threads share."""

from __future__ import annotations

from typing import Any

import pytest

import tilewheel as tw
from tilewheel import simulator


class Library:
    """Records how the switch is set."""

    _name = "a simulator library"

    def __init__(self) -> None:
        self.calls: list[int] = []

    def tilewheel_simulator_set_race_detection(self, enabled: int) -> None:
        self.calls.append(enabled)


def test_inner_block_leaves_race_detection_on_for_the_outer_one() -> None:
    library: Any = Library()
    simulator._switch([library], 1)
    simulator._switch([library], 1)
    simulator._switch([library], -1)
    simulator._switch([library], -1)
    assert library.calls == [1, 1, 1, 0]


@pytest.mark.usefixtures("overlay")
def test_race_detection_without_simulator_artifacts_says_how_to_build_them() -> None:
    with (
        pytest.raises(tw.NoArtifactError, match="no ascend-sim artifacts are installed"),
        simulator.race_detection(),
    ):
        pass
