"""A workspace in which two users left traces everywhere, as real files."""

from pathlib import Path
from typing import Any

import torch

from signals.state import OpenTrace, State, StoredEvent, Tombstone
from signals.trust.cap_state import UNCAPPED
from tendril.lake import open_lake
from tendril.lake.rows import episodes_to_arrow, feedback_to_arrow, traces_to_arrow
from tendril.log import LogRecord, open_log
from tendril.log.sqlite_file import connect
from tendril.records import DeadLetter, Episode, Feedback, Record, Trace, encode
from tendril.settings import Settings
from tests.builders import (
    make_episode,
    make_feedback,
    make_manifest,
    make_segment,
    make_trace,
)

ADA, BOB = "a" * 31 + "1", "b" * 31 + "2"
"""User keys, as long as real ones."""
NUM_TRACES = 30


def make_workspace(folder: Path) -> Settings:
    """Log, lake, spool, joiner state, learner checkpoint: rows of ADA's and of BOB's in each."""
    settings = Settings(workspace=folder / "ws")
    log = open_log(settings)
    log.append([("s", record) for key in (ADA, BOB) for record in records_of(key)])
    log.append([("policy", make_manifest(policy_version=2, trained_offsets={"episodes/0": 1}))])
    log.append([("policy", make_manifest(policy_version=3, trained_offsets={"episodes/0": 60}))])
    log.close()
    _fill_lake(settings)
    _fill_spool(settings.path(Path("serving/spool.db")))
    _fill_state(settings.path(Path("signals/0.db")))
    checkpoint = settings.path(Path("learner/checkpoint.pt"))
    checkpoint.parent.mkdir(parents=True)
    torch.save({"seen_ids": [f"{ADA[0]}-episode-1", f"{BOB[0]}-episode-1"]}, checkpoint)
    return settings


def records_of(key: str) -> list[Record]:
    """What serving and signals have logged of one user, and what nobody could read."""
    who: dict[str, Any] = {"user_key": key, "session_id": f"{key[0]}-session"}
    found: list[Record] = []
    for i in range(NUM_TRACES):
        trace_id = f"{key[0]}-trace-{i}"
        found.append(make_trace(trace_id=trace_id, **who))
        found.append(make_feedback(trace_id=trace_id, event_id=f"{i}", **who))
        segments = (make_segment(trace_id=trace_id),)
        episode_id = f"{key[0]}-episode-{i}"
        found.append(make_episode(episode_id=episode_id, segments=segments, **who))
    letter = DeadLetter(topic="traces", reason="?", value=b"\x93" + key.encode(), at=1.0)
    return [*found, letter]


def _fill_lake(settings: Settings) -> None:
    lake = open_lake(settings)
    both = [*records_of(ADA), *records_of(BOB)]
    traces = [r for r in both if isinstance(r, Trace)]
    feedback = [r for r in both if isinstance(r, Feedback)]
    places = [LogRecord("traces", 0, i, "s", b"", 1_000.0) for i in range(len(traces))]
    lake.append("traces", traces_to_arrow(traces, places), {"signals/traces/0": len(traces)})
    places = [LogRecord("feedback", 0, i, "s", b"", 1_000.0) for i in range(len(feedback))]
    lake.append(
        "feedback", feedback_to_arrow(feedback, places), {"signals/feedback/0": len(feedback)}
    )
    episodes = [r for r in both if isinstance(r, Episode)]
    lake.append("episodes", episodes_to_arrow(episodes), {"signals/episodes/0": len(episodes)})


def _fill_spool(path: Path) -> None:
    db = connect(path)
    db.execute(
        "CREATE TABLE spool (position INTEGER PRIMARY KEY, topic TEXT, key TEXT, value BLOB)"
    )
    db.execute("CREATE TABLE seen (event_id TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID")
    for key in (ADA, BOB):
        trace = encode(make_trace(trace_id=f"{key[0]}-spooled", user_key=key))
        db.execute("INSERT INTO spool (topic, key, value) VALUES ('traces', 's', ?)", (trace,))
        db.execute("INSERT INTO seen VALUES (?, 1.0)", (f"session/{key}/event",))
        db.execute("INSERT INTO seen VALUES (?, 1.0)", (f"{key[0]}-trace-3/event",))
    # A row that was moved on long ago: its bytes lie in a free page.
    db.execute("INSERT INTO spool (topic, key, value) VALUES ('t', 's', ?)", (ADA.encode() * 200,))
    db.execute("DELETE FROM spool WHERE topic='t'")
    db.close()


def _fill_state(path: Path) -> None:
    """Open and settled traces with events, a tombstone, an event of ADA's on a trace of BOB's."""
    state = State(path)
    with state.change():
        for key in (ADA, BOB):
            name = key[0]
            for i, is_settled in ((0, False), (1, True)):
                trace = make_trace(trace_id=f"{name}-trace-{i}", user_key=key)
                state.open_traces(
                    [OpenTrace(trace.trace_id, 10.0, 99.0, 0, 0, None, None,
                               "joined" if is_settled else None, int(is_settled), *UNCAPPED,
                               encode(trace))]
                )  # fmt: skip
                state.counts.read("traces", 10.0, "joined" if is_settled else "pending")
                for n in range(2):
                    event = make_feedback(trace_id=trace.trace_id, user_key=key, event_id=f"{n}")
                    at = 11.0 + n
                    state.add_events([StoredEvent(trace.trace_id, f"{n}", at, encode(event))])
                    is_counted = is_settled and n == 0
                    state.counts.read("feedback", at, "joined" if is_counted else "pending")
            state.close_traces([Tombstone(f"{name}-trace-9", "late", 1e9)])
        stray = make_feedback(trace_id="b-trace-0", user_key=ADA, event_id="stray")
        state.add_events([StoredEvent("b-trace-0", "stray", 12.5, encode(stray))])
        state.counts.read("feedback", 12.5, "pending")
        state.outbox.put([("s", make_episode(user_key=ADA)), ("s", make_episode(user_key=BOB))])
    state.close()


def files_with(folder: Path, needle: bytes) -> list[str]:
    """Files below `folder` in which these bytes are, names included."""
    return [
        str(path)
        for path in folder.rglob("*")
        if (path.is_file() and needle in path.read_bytes()) or needle in str(path).encode()
    ]
