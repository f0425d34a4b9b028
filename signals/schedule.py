"""When a trace is judged: early looks, at its window's end, and once more for latecomers.

All moments are counted on the log's clock from when the trace was logged.
"""

from dataclasses import dataclass
from functools import cached_property

from tendril.records import Maturity


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The stages of a trace, numbered from 0: revisions, the end of the window, the latecomers'."""

    revise_after_s: tuple[float, ...] = ()
    """Early looks, in order; those past the window do not take place."""
    window_s: float
    """How long feedback counts."""
    lateness_s: float = 0.0
    """How much later feedback from inside the window may still be logged."""

    def __post_init__(self) -> None:
        if list(self.revise_after_s) != sorted(set(self.revise_after_s)):
            raise ValueError(f"expected rising revise_after_s, got {self.revise_after_s}")

    @cached_property
    def looks_s(self) -> tuple[float, ...]:
        """Age at each stage up to the window's end."""
        early = (after_s for after_s in self.revise_after_s if after_s < self.window_s)
        return (*early, self.window_s)

    @cached_property
    def final_stage(self) -> int:
        """The number of the window's end; the latecomers' stage follows it."""
        return len(self.looks_s) - 1

    def due_at(self, stage: int, appended_at: float) -> float:
        """When `stage` of a trace logged at `appended_at` takes place."""
        if stage > self.final_stage:
            return appended_at + self.window_s + self.lateness_s
        return appended_at + self.looks_s[stage]

    def maturity(self, stage: int) -> Maturity:
        if stage >= self.final_stage:
            return "final"
        return "provisional" if stage == 0 else "revised"
