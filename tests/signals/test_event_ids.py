"""Event ids are the client's: unique within a trace, and nobody else's business."""

from pathlib import Path

from tests.builders import make_feedback, make_trace
from tests.signals.streams import join_all, make_records, open_joiner


def test_one_event_id_for_two_traces_is_two_events(tmp_path: Path) -> None:
    joiner = open_joiner(tmp_path / "state.db")
    episodes = join_all(
        joiner,
        make_records(
            [
                (1.0, make_trace(trace_id="t1")),
                (1.0, make_trace(trace_id="t2")),
                (2.0, make_feedback(event_id="1", trace_id="t1")),
                (2.0, make_feedback(event_id="1", trace_id="t2")),
                (3.0, make_feedback(event_id="1", trace_id="t2")),
            ]
        ),
    )
    assert {trace: episode.outcome for trace, episode in episodes.items()} == {
        "t1": "accepted", "t2": "accepted",
    }  # fmt: skip
    fates = joiner.ledger(0.0).outcomes["feedback"]
    assert (fates["joined"], fates["duplicate"]) == (2, 1)
