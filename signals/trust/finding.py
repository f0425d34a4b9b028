"""Finding: what a detector saw, about whom, against which limit."""

from dataclasses import dataclass
from typing import Literal

Scope = Literal["user", "tenant", "trace", "policy", "grader", "service"]
"""`service` names no rows: such a finding alarms and holds nothing back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One limit crossed in [`since`, `until`). `why` is for people and holds no user's text."""

    detector: str
    scope: Scope
    scope_id: str
    """Users as `tenant/user_key`, policies by version, graders as `name@version`."""
    figure: float
    limit: float
    since: float
    until: float
    why: str
    holds: bool = True
    """Whether the scope's rows leave training; False: an alarm for people."""
