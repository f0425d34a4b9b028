"""Makes the event that carries a follow-up's class to the log: the words themselves never go there.

It runs where the text is: the node that serves the session's next request, or an annotator that
may read it. The event names the next trace as the place of the text and holds only the class.
"""

from signals.followup.model import Verdict, classify
from tendril.ids import digest_of
from tendril.records import Feedback, Trace


def followed_up(
    before: Trace, after: Trace, *, request: str, reply: str, followup: str, client_seq: int
) -> Feedback | None:
    """`user.followed_up` about `before`, of which `after` is the next turn; `reason` is the class.

    None without both traces' consent to content and training, across users or sessions, or if
    `after` is no next turn. The id is a function of the two traces, so repeats are dropped.
    """
    same = (before.tenant, before.user_key, before.session_id) == (
        after.tenant, after.user_key, after.session_id,
    )  # fmt: skip
    consents = all(trace.content_consent and trace.train_consent for trace in (before, after))
    if not (same and consents and after.previous_trace_id == before.trace_id):
        return None
    gap_s = max(0.0, after.served_at - before.served_at - before.latency.total_s)
    verdict: Verdict = classify(request, reply, followup, gap_s=gap_s)
    return Feedback(
        event_id=digest_of("followed_up", before.trace_id, after.trace_id),
        trace_id=before.trace_id,
        session_id=before.session_id,
        tenant=before.tenant,
        user_key=before.user_key,
        type="user.followed_up",
        reason=verdict.label,
        text_ref=after.trace_id,
        client_seq=client_seq,
        client_time=after.served_at,
        ingested_at=after.served_at,
    )
