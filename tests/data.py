"""The real data that tests read; see `benchmarks.data`."""

from benchmarks.data import DataMissing, wheel

__all__ = ["DataMissing", "wheel"]
