"""Turns of conversations as text: what was asked, answered and asked next.

Only of users who agree that their words are read and learned from. Text is decoded from token ids
where it is needed and goes nowhere else: neither to the log nor to telemetry.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
CONTROL = re.compile(r"<\|[^|<>\s]{1,30}\|>")
USER = re.compile(r"(?:^|\n)\W{0,4}(?:user|human)\W{0,4}(?:\n|:|$)", re.IGNORECASE)
ASSISTANT = re.compile(r"\n?\W{0,4}(?:assistant|model)\W{0,4}$", re.IGNORECASE)


class Turn(NamedTuple):
    """One reply, and what its user wrote next."""

    before: Trace
    after: Trace
    request: str
    reply: str
    follow_up: str


class TurnReader:
    """Reads them from a lake; `folder` is the checkpoint whose tokenizer wrote the ids."""

    def __init__(self, lake: "Lake", folder: Path) -> None:
        self._lake, self._folder = lake, folder

    def logged_from(
        self, offsets: Mapping[int, int], now: float
    ) -> tuple[list[Turn], Mapping[int, int]]:
        """Turns whose next request was logged at `offsets` or behind, by partition; how far now.

        Raises `LakeUnavailable`.
        """
        import pyarrow as pa

        rows = self._lake.read("traces", where=_spoken(now))
        places = zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
        fresh = [place >= (place[0], offsets.get(place[0], 0)) for place in places]
        rows = rows.filter(pa.array(fresh, pa.bool_()))
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
        return [
            self._turn(known[trace.previous_trace_id], trace)
            for trace in after
            if trace.previous_trace_id in known
        ]

    def _turn(self, before: Trace, after: Trace) -> Turn:
        said = before.prompt_token_ids + before.completion_token_ids
        num_old = max(_num_shared(said, after.prompt_token_ids), len(before.prompt_token_ids))
        return Turn(
            before,
            after,
            last_words(self._marked(before.prompt_token_ids)),
            self.text(before.completion_token_ids),
            last_words(self._marked(after.prompt_token_ids[num_old:])),
        )

    def _marked(self, token_ids: Sequence[int]) -> str:
        """The text, a line's end in the place of each control token."""
        parts = [
            self.text(list(part))
            for is_control, part in groupby(token_ids, self._control_ids.__contains__)
            if not is_control
        ]
        return CONTROL.sub("\n", "\n".join(parts))

    def _read(self, rows: "pa.Table") -> list[Trace]:
        from tendril.lake.rows import from_arrow

        digest = self._digest
        return [t for t in from_arrow(Trace, rows) if t.tokenizer_digest == digest]

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self._folder / TOKENIZER_FILE))

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    @cached_property
    def _digest(self) -> str:
        return tokenizer_digest(self._folder)


def last_words(prompt: str) -> str:
    """What the user wrote last, without the marks of a chat template around it."""
    starts = [match.end() for match in USER.finditer(prompt)]
    return ASSISTANT.sub("", prompt[starts[-1] if starts else 0 :]).strip()


def _agreed(now: float) -> "pc.Expression":
    import pyarrow.compute as pc

    first = datetime.fromtimestamp(now - MEMORY_S, UTC).date()
    return (
        (pc.field("day") >= pc.scalar(first))
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
