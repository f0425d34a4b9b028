"""RewardFit: what rewards are corrected by from now on, fitted on what was known by then."""

from typing import Literal

from tendril.records.base import Record


class RewardFit(Record, frozen=True, kw_only=True):
    """One fit. It is in use from the moment it is logged until the next of its kind."""

    TOPIC = "fits"
    kind: Literal["delays", "centres"]
    """How late outcomes come, by bucket; the mean reward of each bucket."""
    digest: str
    """Names the contents: episodes say which they used."""
    content: bytes
    """JSON; see `signals.fitted`."""
    made_at: float
