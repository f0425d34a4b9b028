"""Release: one event in the life of a version, with the evidence behind it."""

from typing import Literal

import msgspec

from tendril.records.base import Record


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One gate check: a number, its interval, its limit, and what follows."""

    name: str
    value: float | None
    ci95: tuple[float, float] | None = None
    limit: float
    num_samples: int
    verdict: Literal["pass", "fail", "inconclusive"]
    why: str = ""


class EvalReport(msgspec.Struct, frozen=True, kw_only=True):
    """All checks of one candidate against the live version. No data is inconclusive."""

    policy_version: int
    against_version: int
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Literal["pass", "fail", "inconclusive"]:
        verdicts = {check.verdict for check in self.checks}
        if "fail" in verdicts:
            return "fail"
        return "pass" if verdicts == {"pass"} else "inconclusive"


ReleaseState = Literal[
    "published",
    "candidate",
    "gate_passed",
    "gate_held",
    "canary",
    "promoted",
    "rolled_back",
    "quarantined",
]


class Release(Record, frozen=True, kw_only=True):
    """One event in the life of a version. State is the fold of these: the log is the audit."""

    TOPIC = "releases"
    policy_version: int
    """The version it is about; for `rolled_back` the one that is taken out of service."""
    state: ReleaseState
    target_version: int | None = None
    """`rolled_back`: the version that serves from now on."""
    actor: str
    reason: str
    at: float
    evidence: EvalReport | None = None
