"""Which numbers of the generator a call gets: reserved on the host, before the kernel starts.

The generator is a function of (seed, sequence, place), so that calls are independent as long as no
place is given out twice. It is not twice: threads take turns, and a forked child goes on in a
sequence of its own.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

SEED_END = 2**63
"""Seeds are below it: they travel as int64."""

_SEQUENCE_LENGTH = 2**63
_BLOCK = 4  # numbers of one counter of Philox 4x32


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Numbers ``offset`` and following of one sequence of a seed."""

    seed: int
    sequence: int
    offset: int


class RandomState:
    """A place in the generator that only moves forward. Safe for use by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seed: int | None = None
        self._sequence = 0
        self._offset = 0
        self._num_forks = 0

    def set_seed(self, seed: int) -> None:
        """Go to the beginning of sequence 0 of a seed."""
        with self._lock:
            self._seed, self._sequence, self._offset = seed, 0, 0
            self._num_forks = 0  # so that children repeat with the seed, too

    def reserve(self, num_elements: int) -> Reservation:
        """Return where ``num_elements`` numbers are that no other call gets.

        Without a seed the first call takes one from the operating system. Offsets are multiples
        of 4; a sequence that has too few numbers left is left for another one.
        """
        length = -(-num_elements // _BLOCK) * _BLOCK
        with self._lock:
            if self._seed is None:
                self._seed = int.from_bytes(os.urandom(8), "little") % SEED_END
            if self._offset + length > _SEQUENCE_LENGTH:
                self._sequence, self._offset = _successor(self._sequence, 0), 0
            reservation = Reservation(seed=self._seed, sequence=self._sequence, offset=self._offset)
            self._offset += length
        return reservation

    def before_fork(self) -> None:
        """Keep other threads out while the process is copied, and count the child."""
        self._lock.acquire()
        self._num_forks += 1

    def after_fork_in_parent(self) -> None:
        """Let other threads in again."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Go on in the sequence that belongs to this child; an unseeded one stays unseeded."""
        self._lock = threading.Lock()
        self._sequence, self._offset = _successor(self._sequence, self._num_forks), 0
        self._num_forks = 0


def _successor(sequence: int, number: int) -> int:
    """Return another sequence: of 63 bits, mixed, so that no two meet but by a chance of 2^-63.

    The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom
    Number Generators", OOPSLA 2014), once for each argument.
    """
    return _mix(_mix(sequence) + number) >> 1


def _mix(value: int) -> int:
    mask = 2**64 - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


state = RandomState()
"""The process's own."""

os.register_at_fork(
    before=state.before_fork,
    after_in_parent=state.after_fork_in_parent,
    after_in_child=state.after_fork_in_child,
)
