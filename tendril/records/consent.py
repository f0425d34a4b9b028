"""Consent: what one user decided about their data, for every process that holds any of it."""

from tendril.records.base import Record


class Consent(Record, frozen=True, kw_only=True):
    """One change of mind, or a deletion. What holds is the fold of these, in log order.

    A topic of its own with one partition, kept for good: every process reads all of it, while
    `feedback` is split by session and expires.
    """

    TOPIC = "consents"
    person: str
    """`tendril.consent.person_of`: a digest, so that the record of a deletion names nobody."""
    train: bool | None = None
    """None: as before."""
    content: bool | None = None
    deleted: bool = False
    """All that was logged before is to be forgotten; nothing is learned until they agree again."""
    consent_version: str | None = None
    at: float
    """When it was said, by the client's clock, or received where that is earlier. The log's time
    decides what holds when; a yes said before a no that is known already counts for nothing."""
