"""What the detectors remember from window to window, in one file."""

from pathlib import Path

import msgspec
import numpy as np

from signals.trust.columns import FloatArray
from tendril.files import write_whole

MAX_SAMPLE = 2_000


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Of the windows that were found good."""

    until: float = 0.0
    """End of the last window that was looked at."""
    history: dict[str, tuple[float, ...]] = {}
    reference: dict[str, tuple[float, ...]] = {}
    """By name, numbers of the last good window."""

    def samples(self) -> dict[str, FloatArray]:
        """The reference as arrays; what was not a number is NaN again."""
        return {name: np.array(values, float) for name, values in self.reference.items()}


def sampled(values: FloatArray) -> tuple[float, ...]:
    """At most `MAX_SAMPLE` of them, evenly."""
    step = max(1, -(-len(values) // MAX_SAMPLE))
    return tuple(map(float, values[::step]))


def read_memory(path: Path) -> Memory:
    """An empty one where there is none, or where it is torn: windows are forgotten, no row is."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Memory)
    except (FileNotFoundError, msgspec.DecodeError):
        return Memory()


def write_memory(path: Path, memory: Memory) -> None:
    write_whole(path, msgspec.msgpack.encode(memory))
