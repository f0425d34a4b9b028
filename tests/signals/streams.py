"""Log records with chosen times, and a joiner to feed them to."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from signals.intake import take
from signals.joiner import Joiner
from signals.recipe import load_recipe
from signals.review import Reviewer
from signals.schedule import Schedule
from signals.state import State
from tendril.log import LogRecord
from tendril.records import Episode, Feedback, PolicySpan, Record, Trace, encode
from tests.builders import make_feedback, make_trace

WINDOW_S = 60.0
LATER = 1e11
"""After every window, of real times too."""
IN_MEMORY = Path(":memory:")


def make_silence(**overrides: Any) -> Trace:
    """A trace whose policy chose to show nothing."""
    fields: dict[str, Any] = {
        "suppressed": True,
        "completion_token_ids": (2,),
        "behavior_logprobs": (-0.5,),
        "token_bytes": (0,),
        "policy_spans": (PolicySpan(policy_version=1, num_tokens=1),),
    }
    return make_trace(**(fields | overrides))


def make_records(timed: Iterable[tuple[float, Record | bytes]]) -> list[LogRecord]:
    """As on the log: one partition a topic, offsets in the order given; bytes go to feedback."""
    offsets = {Trace.TOPIC: 0, Feedback.TOPIC: 0}
    records = []
    for appended_at, record in timed:
        topic = Feedback.TOPIC if isinstance(record, bytes) else record.TOPIC
        value = record if isinstance(record, bytes) else encode(record)
        records.append(LogRecord(topic, 0, offsets[topic], "s1", value, appended_at))
        offsets[topic] += 1
    return records


def make_stream() -> list[tuple[float, Record | bytes]]:
    """Traces and feedback of every fate, in log order."""
    t1, silent, opted_out = (
        make_trace(trace_id="t1"),
        make_silence(trace_id="t2"),
        make_trace(trace_id="t3", train_consent=False),
    )
    early = make_feedback(event_id="early", trace_id="t4", client_seq=2)
    accepted = make_feedback(event_id="accepted", trace_id="t1", client_seq=3)
    return [
        (1.0, early),
        (1.5, make_feedback(event_id="before-silence", trace_id="t2")),
        (1.5, make_feedback(event_id="before-no-consent", trace_id="t3")),
        (2.0, t1),
        (2.0, silent),
        (2.0, opted_out),
        (3.0, make_feedback(event_id="undone", trace_id="t1", type="edit.undone", client_seq=4)),
        (4.0, accepted),
        (4.0, accepted),
        (5.0, t1),
        (6.0, make_trace(trace_id="t4")),
        (7.0, make_feedback(event_id="about-silence", trace_id="t2")),
        (7.0, make_feedback(event_id="no-consent", trace_id="t3")),
        (8.0, make_feedback(event_id="other-session", trace_id="t1", session_id="s2")),
        (8.0, make_feedback(event_id="other-tenant", trace_id="t4", tenant="evil")),
        (9.0, make_feedback(event_id="orphan", trace_id="t9")),
        (9.5, b"\x93garbage"),
        (62.0, make_feedback(event_id="late", trace_id="t1", type="suggestion.rejected")),
        (80.0, make_trace(trace_id="t9")),
    ]


def make_reviewer(**schedule: Any) -> Reviewer:
    """Judges by the default recipe, at the end of the window unless `schedule` says more."""
    recipe = load_recipe(None)
    return Reviewer(
        recipe=recipe,
        recipe_digest=recipe.digest,
        schedule=Schedule(**({"window_s": WINDOW_S} | schedule)),
        held_out_share=0.1,
    )


def open_joiner(path: Path, **schedule: Any) -> Joiner:
    return Joiner(State(path), make_reviewer(**schedule))


def take_episodes(joiner: Joiner) -> dict[str, Episode]:
    """What the joiner has decided since the last call, by trace id; none may come twice."""
    found = [r for _, _, r in joiner.take_outgoing() if isinstance(r, Episode)]
    by_trace = {episode.segments[0].trace_id: episode for episode in found}
    assert len(by_trace) == len(found)
    return by_trace


def step(
    joiner: Joiner, records: Sequence[LogRecord], *, now: float = 0.0, caught_up: bool = False
) -> bool:
    return joiner.step(take(records), now=now, caught_up=caught_up)


def feed(joiner: Joiner, records: Sequence[LogRecord], *, batch: int = 1_000) -> None:
    """Step through `records` in batches, then let every window pass."""
    for start in range(0, len(records), batch):
        while step(joiner, records[start : start + batch]):
            pass
    while step(joiner, [], now=LATER, caught_up=True):
        pass


def join_all(
    joiner: Joiner, records: Sequence[LogRecord], *, batch: int = 1_000
) -> dict[str, Episode]:
    """`feed`, and the episodes by trace id."""
    feed(joiner, records, batch=batch)
    return take_episodes(joiner)
