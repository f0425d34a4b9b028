"""Turns of conversations as text: what was asked, answered and asked next.

Only of users who agree that their words are read and learned from. Text is decoded from token ids
where it is needed and goes nowhere else: neither to the log nor to telemetry.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from signals.lake_columns import day_of
from tendril.consent import Consents
from tendril.model_folder import TOKENIZER_FILE, tokenizer_digest
from tendril.records import Trace

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from tokenizers import Tokenizer

    from tendril.lake.lake import Lake

MEMORY_S = 2 * 86_400.0
"""A conversation that goes on after longer is a new one."""
MAX_TURNS = 2_000
"""Of one look; what is beyond waits for the next."""
MIN_REPLY_SHARE = 0.5
"""Of the reply's tokens that the next prompt must repeat; templates leave some out at its end."""
ROLE = re.compile(
    r"\s*(user|human|assistant|model|system|developer|tool|function|ipython)\b[ \t]*:?\s*", re.I
)
USERS = frozenset({"user", "human"})


class Turn(NamedTuple):
    """One reply, and what its user wrote next."""

    before: Trace
    after: Trace
    request: str
    reply: str
    follow_up: str


class TurnReader:
    """Reads them from a lake; `folder` is the checkpoint whose tokenizer wrote the ids.

    Only where the chat template's marks are control tokens, which a user's text never becomes: in
    plain text anybody can write the mark of another's turn.
    """

    def __init__(self, lake: "Lake", folder: Path, consents: Consents) -> None:
        self._lake, self._folder, self._consents = lake, folder, consents

    def logged_from(
        self, offsets: Mapping[int, int], now: float
    ) -> tuple[list[Turn], Mapping[int, int]]:
        """Turns whose next request was logged at `offsets` or behind, by partition; how far now.

        Raises `LakeUnavailable`.
        """
        rows = self._lake.read("traces", where=_spoken(now) & _behind(offsets))
        rows = rows.sort_by([("offset", "ascending")]).slice(0, MAX_TURNS)
        reached = dict(offsets)
        for partition, offset in zip(
            rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True
        ):
            reached[partition] = max(offset + 1, reached.get(partition, 0))
        return self._turns(rows, now), reached

    def served(self, since: float, until: float) -> list[Turn]:
        """Turns whose next request was served in [since, until). Raises `LakeUnavailable`."""
        import pyarrow.compute as pc

        at = pc.field("served_at")
        rows = self._lake.read("traces", where=_spoken(until) & (at >= since) & (at < until))
        return self._turns(rows.slice(0, MAX_TURNS), until)

    def replies(self, since: float, until: float) -> dict[str, str]:
        """By trace, the text that was shown in [since, until). Raises `LakeUnavailable`."""
        import pyarrow.compute as pc

        at = pc.field("served_at")
        where = _agreed(until) & (at >= since) & (at < until) & ~pc.field("suppressed")
        rows = self._lake.read("traces", where=where).slice(0, MAX_TURNS)
        return {trace.trace_id: self.text(trace.completion_token_ids) for trace in self._read(rows)}

    def text(self, token_ids: Sequence[int]) -> str:
        """Without control tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def _turns(self, rows: "pa.Table", now: float) -> list[Turn]:
        import pyarrow.compute as pc

        after = self._read(rows)
        names = sorted({t.previous_trace_id for t in after if t.previous_trace_id})
        if not names:
            return []
        where = _agreed(now) & pc.field("trace_id").isin(names)
        known = {t.trace_id: t for t in self._read(self._lake.read("traces", where=where))}
        made = (
            self._turn(known[trace.previous_trace_id], trace)
            for trace in after
            if trace.previous_trace_id in known
        )
        return [turn for turn in made if turn is not None]

    def _turn(self, before: Trace, after: Trace) -> Turn | None:
        """None where the next prompt does not go on from the reply, or its last word is not the
        user's: a trimmed history, another conversation, a tool's answer."""
        prompt, reply = before.prompt_token_ids, before.completion_token_ids
        num_shared = _num_shared(prompt + reply, after.prompt_token_ids)
        if num_shared < len(prompt) + MIN_REPLY_SHARE * len(reply):
            return None
        follow_up = self._last_of_user(after.prompt_token_ids[num_shared:])
        if not follow_up:
            return None
        return Turn(before, after, self._last_of_user(prompt), self.text(reply), follow_up)

    def _last_of_user(self, token_ids: Sequence[int]) -> str:
        """What the last message before the reply says, if it is the user's; else nothing."""
        messages: list[tuple[str, str]] = []
        role = ""
        for is_control, part in groupby(token_ids, self._control_names.__contains__):
            if is_control:
                names = [self._control_names[token] for token in part]
                role = next((r for name in names for r in _roles_in(name)), "")
                continue
            text = self.text(list(part))
            named = None if role else ROLE.match(text)
            who = role or (named.group(1).lower() if named else "")
            if who:
                messages.append((who, text[named.end() if named else 0 :].strip()))
        said = [message for message in messages if message[1]]
        return said[-1][1] if said and said[-1][0] in USERS else ""

    def _read(self, rows: "pa.Table") -> list[Trace]:
        from tendril.lake.rows import from_arrow

        digest, consents = self._digest, self._consents
        return [
            trace
            for trace in from_arrow(Trace, rows)
            if trace.tokenizer_digest == digest
            and consents.allows_content(trace.tenant, trace.user_key, asked=True)
            and consents.allows_training(trace.tenant, trace.user_key, made_at=trace.served_at)
        ]

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self._folder / TOKENIZER_FILE))

    @cached_property
    def _control_names(self) -> Mapping[int, str]:
        added = self._tokenizer.get_added_tokens_decoder()
        return {number: token.content for number, token in added.items() if token.special}

    @cached_property
    def _digest(self) -> str:
        return tokenizer_digest(self._folder)


def _roles_in(name: str) -> list[str]:
    """The role that a control token is named after, as in `<|user|>`."""
    return [role for role in re.findall(r"[a-z]+", name.lower()) if ROLE.fullmatch(role)]


def _behind(offsets: Mapping[int, int]) -> "pc.Expression":
    """Rows that lie at these offsets or behind; of other partitions all."""
    import pyarrow.compute as pc

    place, where = pc.field("partition"), ~pc.field("partition").isin(sorted(offsets) or [-1])
    for partition, offset in offsets.items():
        where |= (place == partition) & (pc.field("offset") >= offset)
    return where


def _agreed(now: float) -> "pc.Expression":
    import pyarrow.compute as pc

    return (
        (pc.field("day") >= pc.scalar(day_of(now - MEMORY_S)))
        & pc.field("content_consent")
        & pc.field("train_consent")
    )


def _spoken(now: float) -> "pc.Expression":
    import pyarrow.compute as pc

    return _agreed(now) & (pc.field("route") == "chat") & pc.field("previous_trace_id").is_valid()


def _num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))
