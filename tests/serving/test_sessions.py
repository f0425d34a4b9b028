"""Sessions: given or inferred, turn by turn, and never across keys or users."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from serving.context import Caller, Session
from serving.history import history_of
from serving.sessions import MAX_TWINS, SessionIndex, given_session_id, user_session_id
from tendril.ids import digest_of

CHAT, PLAIN, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ADA, BOB = Caller("acme", "ada"), Caller("acme", "bob")


class Talk:
    """Requests to one index; each reply's trace is `t<n>`, a second after the one before."""

    def __init__(self, **limits: Any) -> None:
        self.index = SessionIndex(**limits)
        self.now = 0.0

    def ask(
        self,
        body: dict[str, Any],
        *replies: str | None,
        caller: Caller = ADA,
        path: str = CHAT,
        given: str | None = None,
        response_id: str | None = None,
    ) -> Session:
        """Resolve, and remember a trace for each of `replies`."""
        history = history_of(path, body)
        session = self.index.resolve(caller, given=given, history=history, now=self.now)
        for reply in replies:
            self.now += 1
            self.index.remember(
                caller, session, history, reply, f"t{self.now:g}", self.now, response_id
            )
        return session

    def chat(self, *said: str, reply: str | None = "ok", caller: Caller = ADA) -> Session:
        """A request with `said` by user and assistant in turns, the user first."""
        return self.ask(messages(*said), reply, caller=caller)


def messages(*said: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]}


def test_a_conversation_is_one_session_turn_by_turn() -> None:
    talk = Talk()
    first = talk.chat("a", reply="A")
    second = talk.chat("a", "A", "b", reply="B")
    third = talk.chat("a", "A", "b", "B", "c", reply="C")
    assert (first.turn, first.previous_trace_id, first.origin) == (0, None, "inferred")
    assert second == Session(first.session_id, "inferred", 1, "t1")
    assert third == Session(first.session_id, "inferred", 2, "t2")


def test_every_opening_is_a_session_of_its_own() -> None:
    talk = Talk()
    assert len({talk.chat("hello").session_id for _ in range(3)}) == 3


def test_equal_openings_are_told_apart_by_the_reply() -> None:
    talk = Talk()
    one, two = talk.chat("joke", reply="cow"), talk.chat("joke", reply="hen")
    assert talk.chat("joke", "cow", "more").session_id == one.session_id
    assert talk.chat("joke", " hen\n", "more").session_id == two.session_id
    assert talk.chat("joke", "cow", "more", "ok", "more").session_id == one.session_id
    unclear = talk.chat("joke", "neither", "more", reply="x")
    assert unclear.session_id not in (one.session_id, two.session_id)
    assert unclear.previous_trace_id is None
    assert talk.chat("joke", "neither", "more", "x", "go on").session_id == unclear.session_id


def test_a_client_may_send_a_reply_back_in_other_words() -> None:
    talk = Talk()
    first = talk.chat("joke", reply="<think>farm</think> hen")
    assert talk.chat("joke", "hen", "more") == Session(first.session_id, "inferred", 1, "t1")


def test_a_reply_without_known_text_goes_before_one_that_says_something_else() -> None:
    talk = Talk()
    tool = talk.chat("joke", reply=None)
    talk.chat("joke", reply="hen")
    assert talk.chat("joke", "raw text of a tool call", "go").session_id == tool.session_id


def test_of_several_choices_the_one_that_was_kept_is_the_previous_trace() -> None:
    talk = Talk()
    first = talk.ask(messages("a"), "x", "y", "z")
    assert talk.chat("a", "y", "b") == Session(first.session_id, "inferred", 1, "t2")


def test_an_edited_message_branches_off_in_the_same_session() -> None:
    talk = Talk()
    first = talk.chat("a", reply="A")
    talk.chat("a", "A", "b", reply="B")
    talk.chat("a", "A", "b", "B", "c", reply="C")
    assert talk.chat("a", "A", "b2", reply="B2") == Session(first.session_id, "inferred", 1, "t1")
    assert talk.chat("a", "A", "b2", "B2", "c").previous_trace_id == "t4"
    assert talk.chat("a2").session_id != first.session_id


def test_a_turn_that_another_replica_served_leaves_a_gap() -> None:
    talk = Talk()
    first = talk.chat("a", reply="A")
    later = talk.chat("a", "A", "b", "B", "c", "C", "d")
    assert later == Session(first.session_id, "inferred", 3, None)
    assert talk.chat("a", "other", "b", "B", "c").session_id != first.session_id


def test_replicas_agree_on_a_conversation_that_neither_saw_begin() -> None:
    said = ("a", "A", "b", "B", "c")
    one, other = Talk().chat(*said), Talk().chat(*said)
    assert one == other == Session(one.session_id, "inferred", 2, None)
    assert one.session_id != Talk().chat(*said, caller=BOB).session_id
    assert one.session_id != Talk().chat("a2", *said[1:]).session_id


def test_a_reply_that_the_client_began_opens_a_session() -> None:
    sessions = {Talk().chat("a", "{").session_id for _ in range(2)}
    assert len(sessions) == 2


def test_a_given_session_counts_its_turns_whatever_the_messages() -> None:
    talk = Talk()
    for turn in range(3):
        session = talk.ask(messages(f"m{turn}"), "ok", given="doc")
        previous = f"t{turn}" if turn else None
        assert session == Session(digest_of("acme", "doc"), "given", turn, previous)
    elsewhere = talk.ask(messages("m"), given="doc", caller=Caller("evil", "ada"))
    assert elsewhere == Session(given_session_id("evil", "doc"), "given")


def test_plain_completions_of_a_user_are_one_session() -> None:
    talk = Talk()
    turns = [talk.ask({"prompt": p}, "ok", path=PLAIN) for p in ("x", "y")]
    assert turns == [
        Session(user_session_id("acme", "ada"), "inferred", 0, None),
        Session(user_session_id("acme", "ada"), "inferred", 1, "t1"),
    ]
    assert talk.ask({"messages": 7}, path=CHAT).session_id == turns[0].session_id
    assert talk.ask({"prompt": "x"}, caller=BOB, path=PLAIN).turn == 0


def test_requests_that_run_at_once_share_a_turn_and_none_is_lost() -> None:
    talk = Talk()
    one, two = (talk.index.resolve(ADA, given="s", history=None, now=0.0) for _ in range(2))
    for trace_id, session in (("t1", one), ("t2", two)):
        talk.index.remember(ADA, session, None, None, trace_id, 1.0)
    third = talk.index.resolve(ADA, given="s", history=None, now=2.0)
    assert (one.turn, two.turn, third.turn, third.previous_trace_id) == (0, 0, 1, "t2")
    talk.index.remember(ADA, third, None, None, "t3", 3.0)
    talk.index.remember(ADA, one, None, None, "slow", 4.0)
    assert talk.index.resolve(ADA, given="s", history=None, now=5.0).previous_trace_id == "t3"


def test_a_response_is_continued_by_its_id() -> None:
    talk = Talk()
    first = talk.ask({"input": "a"}, "A", path=RESPONSES, response_id="resp_1")
    body = {"input": "b", "previous_response_id": "resp_1"}
    second = talk.ask(body, "B", path=RESPONSES, response_id="resp_2")
    assert second == Session(first.session_id, "inferred", 1, "t1")
    body = {"input": "c", "previous_response_id": "resp_2"}
    assert talk.ask(body, path=RESPONSES) == Session(first.session_id, "inferred", 2, "t2")
    stranger = talk.ask(body, path=RESPONSES, caller=BOB)
    assert stranger.session_id not in (first.session_id, talk.chat("b", "B", "c").session_id)
    lone = talk.ask(body | {"previous_response_id": "\ud800"}, path=RESPONSES)
    assert lone.turn == 0


def test_what_is_too_old_is_forgotten() -> None:
    talk = Talk(max_age_s=100.0)
    first = talk.chat("a", reply="A")
    talk.now = 100.5
    assert talk.ask(messages("a", "A", "b")).session_id == first.session_id
    talk.now = 101.5
    assert talk.ask(messages("a", "A", "b")).session_id != first.session_id
    talk.chat("x", caller=BOB)
    assert len(talk.index) == 1


def test_a_busy_user_costs_others_nothing() -> None:
    talk = Talk(max_entries=60, max_entries_per_user=40)
    kept = talk.chat("a", reply="A", caller=BOB)
    for n in range(500):
        talk.chat(f"m{n}")
    assert len(talk.index) <= 60
    assert talk.chat("a", "A", "b", caller=BOB).session_id == kept.session_id
    assert talk.chat("m499", "ok", "b").turn == 1
    assert talk.chat("m0", "ok", "b").previous_trace_id is None


callers = st.sampled_from([Caller(tenant, user) for tenant in ("acme", "evil") for user in "ab"])
words = st.sampled_from("xy")
requests = st.lists(
    st.tuples(callers, st.lists(words, min_size=1, max_size=5), words, st.none() | words),
    max_size=40,
)


@given(requests=requests, limit=st.integers(1, 12))
def test_no_session_ever_spans_keys_or_users(requests: Any, limit: int) -> None:
    talk = Talk(max_entries=limit, max_entries_per_user=limit)
    owner_of: dict[str, Caller] = {}
    trace_of: dict[str, tuple[Caller, Session]] = {}
    for caller, said, reply, given_name in requests:
        session = talk.ask(messages(*said), reply, caller=caller, given=given_name)
        assert len(talk.index) <= limit + MAX_TWINS
        trace_of[f"t{talk.now:g}"] = (caller, session)
        who = caller._replace(user_key="") if given_name else caller
        assert owner_of.setdefault(session.session_id, who) == who
        if session.previous_trace_id is not None:
            asker, previous = trace_of[session.previous_trace_id]
            assert asker == caller
            assert previous.session_id == session.session_id
            assert session.turn == previous.turn + 1


@given(order=st.lists(st.integers(0, 3), max_size=30), same_opening=st.booleans())
def test_interleaved_conversations_stay_apart(order: list[int], same_opening: bool) -> None:
    talk = Talk()
    said: list[list[str]] = [["hello" if same_opening else f"hello {n}"] for n in range(4)]
    sessions: list[list[Session]] = [[] for _ in range(4)]
    for step, n in enumerate(order):
        reply = f"{n}: reply {step}"
        sessions[n].append(talk.chat(*said[n], reply=reply))
        said[n] += [reply, f"go on {step if not same_opening else ''}"]
    ids = [{session.session_id for session in mine} for mine in sessions if mine]
    assert all(len(mine) == 1 for mine in ids)
    assert len(set.union(set(), *ids)) == len(ids)
    for mine in sessions:
        assert [session.turn for session in mine] == list(range(len(mine)))
