"""One measured number, beside a peer's and the target."""

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One row of what a benchmark reports."""

    metric: str
    unit: str
    ours: float
    peer: float | None = None
    """The same quantity for `peer_name`, measured here or published."""
    peer_name: str = ""
    ratio: float | None = None
    """Ours over the peer's."""
    target: float | None = None
    """The limit that `ours` has to meet."""
    ok: bool | None = None
    """Whether it does; None without a target."""
