"""Whose rows are to go, and by which ids they are known where their key is not written."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tendril.consent import person_of
from tendril.files import write_whole

WORD = re.compile(rb"[0-9A-Za-z_.-]+")

Matches = Callable[[str | bytes], bool]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a deletion looks for. Kept until it is done: once the log's rows are gone, nothing
    else tells which ids were theirs. It does not hold the key."""

    trace_ids: frozenset[str] = frozenset()
    episode_ids: frozenset[str] = frozenset()
    session_ids: frozenset[str] = frozenset()
    policy_versions: frozenset[int] = frozenset()
    """Trained on rows of theirs."""

    def joined(self, other: "Plan") -> "Plan":
        return Plan(
            trace_ids=self.trace_ids | other.trace_ids,
            episode_ids=self.episode_ids | other.episode_ids,
            session_ids=self.session_ids | other.session_ids,
            policy_versions=self.policy_versions | other.policy_versions,
        )


@dataclass(frozen=True, slots=True)
class Owner:
    """A user as Tendril knows them."""

    tenant: str
    user_key: str

    @property
    def person(self) -> str:
        """Name of the plan and the certificate: the key must not be in a file's name."""
        return person_of(self.tenant, self.user_key)


def matcher(user_key: str, plan: Plan) -> Matches:
    """Tells values that name the user: by key, anywhere inside, or by the id of a trace, episode
    or session of theirs, as a whole word."""
    key = user_key.encode()
    ids = {i.encode() for i in plan.trace_ids | plan.episode_ids | plan.session_ids}

    def matches(value: str | bytes) -> bool:
        data = value.encode(errors="surrogatepass") if isinstance(value, str) else value
        return key in data or (bool(ids) and any(word in ids for word in WORD.findall(data)))

    return matches


def read_plan(path: Path) -> Plan:
    """What an earlier run that did not end had found; an empty one where there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except FileNotFoundError:
        return Plan()


def write_plan(path: Path, plan: Plan) -> None:
    write_whole(path, msgspec.json.encode(plan, order="deterministic"))
