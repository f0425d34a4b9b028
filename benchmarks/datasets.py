"""Real event data, read out of the wheels that `make data` fetched.

Open Bandit: impressions of a shop under two logging policies, with true propensities. CDNOW: the
purchases of customers who joined in early 1997. Chit-chat: rated conversations between people;
their words never leave this module, senders leave as hashes.
"""

import hashlib
import io
import json
from datetime import date, datetime
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import wheel

Campaign = Literal["all", "men", "women"]
OPEN_BANDIT_COLUMNS = (2, 3, 4, 5)  # item, position, click, propensity


class Impressions(NamedTuple):
    """One campaign as one policy logged it; N = 10,000 rows."""

    items_N: NDArray[np.int64]
    positions_N: NDArray[np.int64]
    """1 to 3."""
    clicked_N: NDArray[np.bool_]
    propensities_N: NDArray[np.float64]
    num_items: int


class Purchases(NamedTuple):
    """Days of each customer's first and second purchase; N = customers."""

    first_day_N: NDArray[np.float64]
    """Since 1 January 1997."""
    second_day_N: NDArray[np.float64]
    """The next day with a purchase; NaN if none came by June 1998."""


class ChatEvent(NamedTuple):
    """One message: who, when, and what it is a copy of."""

    conversation: int
    sender: str
    at: float
    """Unix seconds."""
    text_digest: str


class Ratings(NamedTuple):
    """What was said of one conversation; the corpus does not tell on which scale."""

    conversation: int
    witty: int
    interesting: int
    upbeat: int


def open_bandit(policy: Literal["random", "bts"], campaign: Campaign) -> Impressions:
    """`random`: items drawn uniformly. `bts`: Thompson sampling."""
    with wheel("obp") as archive:
        text = archive.read(f"obp/dataset/obd/{policy}/{campaign}/{campaign}.csv").decode()
    rows_ND = np.loadtxt(io.StringIO(text), delimiter=",", skiprows=1, usecols=OPEN_BANDIT_COLUMNS)
    items_N, positions_N, clicks_N, propensities_N = rows_ND.T
    return Impressions(
        items_N=items_N.astype(np.int64),
        positions_N=positions_N.astype(np.int64),
        clicked_N=clicks_N > 0,
        propensities_N=propensities_N,
        num_items=int(items_N.max()) + 1,
    )


def cdnow() -> Purchases:
    """All 23,570 customers, in the order of their numbers."""
    with wheel("Lifetimes") as archive:
        rows = archive.read("lifetimes/datasets/CDNOW_master.txt").decode().splitlines()[1:]
    days_of: dict[str, set[int]] = {}
    start = date(1997, 1, 1).toordinal()
    for row in rows:
        customer, day = row.split()[:2]
        ordinal = date(int(day[:4]), int(day[4:6]), int(day[6:])).toordinal()
        days_of.setdefault(customer, set()).add(ordinal - start)
    visits = [sorted(days_of[customer]) for customer in sorted(days_of)]
    return Purchases(
        first_day_N=np.array([days[0] for days in visits], dtype=np.float64),
        second_day_N=np.array([days[1] if len(days) > 1 else np.nan for days in visits]),
    )


def chitchat() -> tuple[list[ChatEvent], list[Ratings]]:
    """Messages in file order, and the ratings of the conversations that have some."""
    with wheel("chitchat-dataset") as archive:
        conversations = json.loads(archive.read("chitchat_dataset/dataset.json"))
    events: list[ChatEvent] = []
    ratings: list[Ratings] = []
    for number, conversation in enumerate(conversations.values()):
        for turn in conversation["messages"]:
            for message in turn:
                at = datetime.fromisoformat(message["timestamp"]).timestamp()
                sender, text = _digest(message["sender"]), _digest(message["text"])
                events.append(ChatEvent(number, sender, at, text))
        if rated := conversation.get("ratings"):
            ratings.append(Ratings(number, rated["witty"], rated["interesting"], rated["upbeat"]))
    return events, ratings


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
