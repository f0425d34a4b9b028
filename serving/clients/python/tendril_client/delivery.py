"""Delivery of one batch: what the server's answer means for each of its events."""

import json
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import httpx2

from tendril_client.pending import PendingEvent

RETRY_STATUSES = frozenset({408, 409, 425, 429})
RETRY_ERROR_TYPES = frozenset({"service_unavailable_error", "rate_limit_error", "api_error"})


class Drop(NamedTuple):
    """An event that will not be sent again, as the server said or for want of room."""

    event_id: str
    body: str
    reason: str


class Verdicts(NamedTuple):
    """What became of the events of a batch; those in none of the lists are to be sent again."""

    accepted: list[str]
    duplicate: list[str]
    refused: list[Drop]


class TryLater(Exception):
    """Nothing or not all was delivered; worth another try, after `after_s` if the server said."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


class BatchRefused(Exception):
    """The request as a whole is refused: smaller batches may show which event is to blame."""


def post(http: httpx2.Client, batch: Sequence[PendingEvent], now: float) -> Verdicts:
    """Send a batch once. Raises `TryLater` or `BatchRefused`. `now`: Unix seconds."""
    body = '{"events":[' + ",".join(event.body for event in batch) + "]}"
    headers = {"content-type": "application/json"}
    try:
        answer = http.post(batch[0].endpoint, content=body.encode(), headers=headers)
    except httpx2.TransportError as error:
        raise TryLater(f"{batch[0].endpoint}: {error!r}") from error
    if answer.status_code in RETRY_STATUSES or answer.status_code >= 500:
        after_s = retry_after_s(answer.headers.get("retry-after"), now)
        raise TryLater(f"{batch[0].endpoint}: status {answer.status_code}", after_s)
    if not answer.is_success:
        raise BatchRefused(f"status {answer.status_code}: {answer.text[:500]}")
    return read_results(answer.text, batch)


def read_results(text: str, batch: Sequence[PendingEvent]) -> Verdicts:
    """The verdict on each event by its id. Raises `TryLater` if this is no answer of Tendril's."""
    try:
        results = {result["event_id"]: result for result in json.loads(text)["results"]}
    except (ValueError, KeyError, TypeError) as error:
        raise TryLater(f"expected the feedback API's results, got {text[:200]!r}") from error
    verdicts = Verdicts([], [], [])
    for event in batch:
        result = results.get(event.event_id, {})
        match result.get("status"):
            case "accepted":
                verdicts.accepted.append(event.event_id)
            case "duplicate":
                verdicts.duplicate.append(event.event_id)
            case "refused" if not _is_temporary(result):
                reason = json.dumps(result.get("error"))
                verdicts.refused.append(Drop(event.event_id, event.body, reason))
    return verdicts


def retry_after_s(header: str | None, now: float) -> float:
    """Seconds that a Retry-After header asks for (RFC 9110, 10.2.3); 0 if it says nothing."""
    if header is None:
        return 0.0
    if header.strip().isdigit():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - now)
    except ValueError:
        return 0.0


def _is_temporary(result: dict[str, Any]) -> bool:
    error = result.get("error")
    return isinstance(error, dict) and error.get("type") in RETRY_ERROR_TYPES
