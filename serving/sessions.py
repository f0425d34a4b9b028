"""Which conversation a request belongs to, and which turn of it this is.

A session is given by the application, or inferred, never across tenants or users:

- A chat request without replies in it opens a session.
- One that carries replies continues the request that it grew from: the one to which all the same
  had been said. Equal ones are told apart by the texts of the replies. Where the direct parent is
  unknown (another replica served it), the newest earlier turn that is known here decides.
- A user who edits an earlier message branches: same session, and the turn after the last one that
  was left as it was. Who edits the first message opens a new session.
- Where nothing is known, session and opening have one digest, so replicas agree.
- `previous_response_id` names the parent outright. Plain completions of a user are one session.

Turns count along a branch: requests that run at once, or regenerate one reply, share a number.
Bounded in entries, a user's entries, and age; safe to call from any thread.
"""

import threading
from collections import OrderedDict
from collections.abc import Set
from typing import NamedTuple

from serving.context import Caller, Session
from serving.history import Exchange, History, text_digest
from tendril.consent import person_of
from tendril.ids import digest_of, new_id

MAX_TWINS = 32
"""Requests remembered to which the same had been said: choices of one, and equal openings."""


class Turn(NamedTuple):
    """One request that was served."""

    session_id: str
    turn: int
    trace_id: str
    answer: bytes | None
    at: float


Owner = tuple[str, str]
Turns = OrderedDict[str | bytes, tuple[Turn, ...]]


def given_session_id(tenant: str, given: str) -> str:
    """The session that an application named: the same name is another session elsewhere."""
    return digest_of(tenant, given)


def user_session_id(tenant: str, hashed_user: str) -> str:
    """The one session of a user's plain completions."""
    return digest_of(tenant, hashed_user, "inferred")


class SessionIndex:
    """See the module. Times are seconds of any one clock."""

    def __init__(
        self,
        *,
        max_entries: int = 100_000,
        max_entries_per_user: int = 20_000,
        max_age_s: float = 86_400.0,
    ) -> None:
        self._max_entries, self._max_per_user = max_entries, max_entries_per_user
        self._max_age_s = max_age_s
        self._owners: OrderedDict[Owner, Turns] = OrderedDict()  # least recently served first
        self._num_entries = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._num_entries

    def resolve(
        self, caller: Caller, *, given: str | None, history: History | None, now: float
    ) -> Session:
        """The request's session and its place there, as far as this process saw it."""
        with self._lock:
            if given:
                session_id = given_session_id(caller.tenant, given)
                last = self._last(caller, session_id, now)
                return _after(last, Session(session_id, "given"))
            if history is not None and history.previous_response_id is not None:
                response_id = history.previous_response_id
                digest = digest_of(*_owner(caller), "response", _printable(response_id))
                last = self._last(caller, _response_key(response_id), now)
                return _after(last, Session(digest, "inferred"))
            if history is None or history.asked is None:
                session_id = user_session_id(*_owner(caller))
                last = self._last(caller, session_id, now)
                return _after(last, Session(session_id, "inferred"))
            return self._of_chat(caller, history, now)

    def remember(
        self,
        caller: Caller,
        session: Session,
        history: History | None,
        reply_text: str | None,
        trace_id: str,
        now: float,
        response_id: str | None = None,
    ) -> None:
        """Note a served request, so that its next turn is found. Once a choice, if it has several.

        `response_id`: under which the Responses API may continue it.
        """
        turn = Turn(session.session_id, session.turn, trace_id, text_digest(reply_text), now)
        keys: list[str | bytes] = [session.session_id]
        if session.origin == "inferred" and history is not None and history.asked is not None:
            keys = [history.asked]
        if response_id is not None:
            keys.append(_response_key(response_id))
        with self._lock:
            for key in keys:
                self._add(_owner(caller), key, turn)
            self._forget(now)

    def forget(self, persons: Set[str]) -> None:
        """Drop what is remembered of these (`tendril.consent.person_of`)."""
        if not persons:
            return
        for owner in list(self._owners):  # hashed outside the lock: requests go on meanwhile
            if person_of(*owner) in persons:
                with self._lock:
                    turns = self._owners.pop(owner, None)
                    self._num_entries -= sum(map(len, turns.values())) if turns else 0

    def _of_chat(self, caller: Caller, history: History, now: float) -> Session:
        parent = self._parent(caller, history.earlier, now)
        if parent is not None:
            return _after(parent, Session(parent.session_id, "inferred"))
        for distance, exchange in enumerate(history.earlier, start=1):
            turns = self._answering(caller, exchange, now)
            if turns:
                return Session(turns[-1].session_id, "inferred", turns[-1].turn + distance)
        if history.opening == history.asked:  # no reply in it, or only the beginning of its own
            return Session(new_id(), "inferred")
        opening = (history.opening or b"").hex()
        session_id = digest_of(*_owner(caller), "opening", opening)
        return Session(session_id, "inferred", len(history.earlier))

    def _parent(self, caller: Caller, exchanges: tuple[Exchange, ...], now: float) -> Turn | None:
        """The request that this one grew from: it was asked the same and answered with that text.

        Replies whose text is not known, else replies that clients may have edited, can be it too,
        if they are all of one session: between two nothing is guessed.
        """
        if not exchanges:
            return None
        newest, *older = exchanges
        turns = self._turns(caller, newest.asked, now)
        same = [turn for turn in turns if turn.answer == newest.answer]
        unknown = [turn for turn in turns if turn.answer is None or newest.answer is None]
        likeliest = same or unknown or turns
        for exchange in older:
            if len({turn.session_id for turn in likeliest}) <= 1:
                break
            before = {turn.session_id for turn in self._answering(caller, exchange, now)}
            likeliest = [t for t in likeliest if t.session_id in before] or likeliest
        is_clear = same or len({turn.session_id for turn in likeliest}) == 1
        return likeliest[-1] if is_clear else None

    def _answering(self, caller: Caller, exchange: Exchange, now: float) -> list[Turn]:
        """Turns that were asked the same and answered it with the same text."""
        turns = self._turns(caller, exchange.asked, now)
        return [turn for turn in turns if turn.answer == exchange.answer]

    def _last(self, caller: Caller, key: str | bytes, now: float) -> Turn | None:
        turns = self._turns(caller, key, now)
        return turns[-1] if turns else None

    def _turns(self, caller: Caller, key: str | bytes, now: float) -> list[Turn]:
        turns = self._owners.get(_owner(caller))
        known = turns.get(key, ()) if turns else ()
        return [turn for turn in known if turn.at > now - self._max_age_s]

    def _add(self, owner: Owner, key: str | bytes, turn: Turn) -> None:
        """Strings name one session or response, whose newest turn counts; digests have twins."""
        turns = self._owners.setdefault(owner, OrderedDict())
        self._owners.move_to_end(owner)
        before = turns.pop(key, ())
        if isinstance(key, bytes):
            after = (*before, turn)[-MAX_TWINS:]
        else:
            after = before if before and before[0].turn > turn.turn else (turn,)
        turns[key] = after
        self._num_entries += len(after) - len(before)
        while len(turns) > self._max_per_user:
            self._num_entries -= len(turns.popitem(last=False)[1])

    def _forget(self, now: float) -> None:
        """Drop what is too old or too much, of those users first who have been away longest."""
        while self._owners:
            owner, turns = next(iter(self._owners.items()))
            oldest = next(iter(turns.values()))[-1]
            if self._num_entries <= self._max_entries and oldest.at > now - self._max_age_s:
                return
            self._num_entries -= len(turns.popitem(last=False)[1])
            if not turns:
                del self._owners[owner]


def _owner(caller: Caller) -> Owner:
    return caller.tenant, caller.user_key


def _after(last: Turn | None, first: Session) -> Session:
    """The turn after `last`, which may have been found under another session's name."""
    if last is None:
        return first
    return Session(last.session_id, first.origin, last.turn + 1, last.trace_id)


def _response_key(response_id: str) -> str:
    return f"response {response_id}"


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
