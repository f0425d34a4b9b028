"""What the packages tell each other: immutable records, one schema version each.

On the log a record is msgpack (`encode`, `decode`). Times are Unix seconds, log-probs natural logs.
`[T]` marks per-completion-token fields of one length. Unknown fields from a newer minor writer are
ignored; a newer `schema` is refused.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

import msgspec


class InvalidRecord(ValueError):
    """Bytes that are not the expected record; the reader moves them to `dead_letters`."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every record."""

    TOPIC: ClassVar[str]
    SCHEMA: ClassVar[int] = 1
    schema: int = 1


Lane = Literal["online", "offline"]
Route = Literal["chat", "completion", "suggestion"]
FinishReason = Literal["stop", "length", "tool_calls", "cancelled_by_client", "error"]


class PolicySpan(msgspec.Struct, frozen=True, kw_only=True):
    """`num_tokens` consecutive completion tokens, sampled by one policy version."""

    policy_version: int
    num_tokens: int


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens were drawn; `temperature` 0 means greedy."""

    temperature: float
    max_tokens: int
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


class Exploration(msgspec.Struct, frozen=True, kw_only=True):
    """One decision's place in the show-regardless experiment (only where silence is a choice)."""

    share: float
    """Probability, fixed before the decision, that silence was forbidden for it."""
    forced: bool
    """Whether it was."""
    silence_logprob: float
    """Of the silence token as first token, under the policy alone."""


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds a request spent: waiting for the engine, to its first token, in all."""

    queue_s: float
    first_token_s: float
    total_s: float


class Trace(Record, frozen=True, kw_only=True):
    """One served decision, silence included, with all that is needed to score it again."""

    TOPIC = "traces"
    trace_id: str
    session_id: str
    session_origin: Literal["given", "inferred"]
    tenant: str
    user_key: str
    """Keyed hash of the user, see `tendril.ids.user_key`."""
    lane: Lane = "online"
    route: Route
    served_at: float
    model: str
    tokenizer_digest: str
    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]  # [T], the silence token included when it was sampled
    behavior_logprobs: tuple[float, ...]
    """[T]: of each sampled token under the policy, after temperature, before exploration."""
    policy_spans: tuple[PolicySpan, ...]
    """In order; their `num_tokens` sum to T. Weights can change in the middle of a reply."""
    token_bytes: tuple[int, ...]
    """[T]: bytes of shown text each token added, so feedback spans map to tokens exactly."""
    sampling: Sampling
    finish_reason: FinishReason
    suppressed: bool = False
    """The policy chose silence: nothing was shown."""
    exploration: Exploration | None = None
    latency: Latency
    arm: str = "live"
    propensity: float = 1.0
    """Probability of `arm` for this user."""
    train_consent: bool = True
    untrainable: str | None = None
    """Why the learner must not use it (for example a sampler it cannot renormalise), or None."""

    def __post_init__(self) -> None:
        num_tokens = len(self.completion_token_ids)
        spans = sum(span.num_tokens for span in self.policy_spans)
        for name, got in (
            ("behavior_logprobs", len(self.behavior_logprobs)),
            ("token_bytes", len(self.token_bytes)),
            ("tokens in policy_spans", spans),
        ):
            if got != num_tokens:
                raise ValueError(
                    f"trace {self.trace_id}: got {got} {name} for {num_tokens} completion tokens"
                )


FeedbackType = Literal[
    "suggestion.shown",
    "suggestion.accepted",
    "suggestion.accepted_partially",
    "suggestion.rejected",
    "suggestion.ignored",
    "edit.applied",
    "edit.undone",
    "edit.redone",
    "edit.reverted",
    "retention.measured",
    "content.copied",
    "content.inserted",
    "user.followed_up",
    "response.regenerated",
    "response.stopped",
    "feedback.vote",
    "feedback.rating",
    "grader.scored",
    "session.ended",
]


class Feedback(Record, frozen=True, kw_only=True):
    """One thing that a person, client or grader did about a trace.

    It never names a policy version: that comes from the trace.
    """

    TOPIC = "feedback"
    event_id: str
    """Made once by the client and kept on retry: repeats are dropped by it."""
    trace_id: str
    session_id: str
    tenant: str
    user_key: str
    type: FeedbackType
    value: float | None = None
    """Meaning by type: share of shown bytes accepted, retention in [0, 1], vote in {-1, 0, 1}."""
    span: tuple[int, int] | None = None
    """[start, end) byte offsets in the shown text that the event is about."""
    horizon_s: float | None = None
    """`retention.measured`: seconds after acceptance at which it was measured."""
    visible_ms: float | None = None
    client_seq: int
    """Per session, plus one an event: the order in which the client did things."""
    client_time: float
    client_monotonic_s: float | None = None
    ingested_at: float


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One trace inside an episode: prompt, sampled tokens and credit."""

    trace_id: str
    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]  # [T]
    loss_mask: tuple[bool, ...]  # [T]
    behavior_logprobs: tuple[float, ...]  # [T]
    policy_spans: tuple[PolicySpan, ...]
    credit: tuple[float, ...]
    """[T]: per-token reward; its mean over `loss_mask` equals the episode's reward."""
    temperature: float
    exploration: Exploration | None = None


class Episode(Record, frozen=True, kw_only=True):
    """The traces of one piece of work, closed, with reward. Self-contained for training."""

    TOPIC = "episodes"
    episode_id: str
    """Hash of trace id, recipe digest and revision: a replay makes the same id."""
    session_id: str
    tenant: str
    user_key: str
    lane: Lane
    route: Route
    closed_at: float
    served_at: float
    feedback_at: float | None
    """Ingest time of the last feedback that counted; None without any."""
    segments: tuple[Segment, ...]
    reward: float | None
    """None means unknown (no component observed), 0.0 means neutral."""
    weight: float = 1.0
    """How much of an observation this is (an ignored suggestion counts half)."""
    components: dict[str, float]
    """Reward parts by name; what was not observed is absent."""
    outcome: str
    """How it ended: accepted, accepted_partially, undone, rejected, ignored, suppressed, ..."""
    accepted_bytes: int = 0
    shown_bytes: int = 0
    held_out: bool = False
    """Reserved for the gate: the learner never trains on it."""
    tokenizer_digest: str
    recipe_digest: str
    revision: int = 0
    supersedes: str | None = None
    maturity: Literal["provisional", "revised", "final"] = "final"
    group_id: str | None = None
    train_consent: bool = True
    untrainable: str | None = None

    def __post_init__(self) -> None:
        for segment in self.segments:
            num_tokens = len(segment.completion_token_ids)
            for name in ("loss_mask", "behavior_logprobs", "credit"):
                got = len(getattr(segment, name))
                if got != num_tokens:
                    raise ValueError(
                        f"episode {self.episode_id}, trace {segment.trace_id}: "
                        f"got {got} {name} for {num_tokens} completion tokens"
                    )


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable object in the weight store."""

    name: str
    """What it is below a checkpoint folder, for example `model.safetensors`."""
    key: str
    """Where it is: `objects/<blake3>`."""
    blake3: str
    num_bytes: int


class PolicyManifest(Record, frozen=True, kw_only=True):
    """Published weights."""

    TOPIC = "policies"
    policy_version: int
    parent: int | None
    """The version these weights were trained from; None for the first."""
    base_version: int | None = None
    """What a delta applies to; None where only a snapshot exists."""
    snapshot: tuple[StoredFile, ...]
    delta: StoredFile | None = None
    weights_digest: str
    """BLAKE3 over the tensors' names, dtypes, shapes and bytes, see `shipper.weights`."""
    tokenizer_digest: str
    published_at: float
    trained_offsets: dict[str, int] = {}
    """Next log offset by `topic/partition`: everything before it was read."""
    newest_feedback_at: float | None = None
    """Ingest time of the newest feedback trained on."""
    num_steps: int = 0
    num_episodes: int = 0
    recipe_digest: str = ""
    code_revision: str = ""
    hyperparameters: dict[str, float] = {}
    metrics: dict[str, float] = {}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One gate check: a number, its interval, its limit, and what follows."""

    name: str
    value: float | None
    ci95: tuple[float, float] | None = None
    limit: float
    num_samples: int
    verdict: Literal["pass", "fail", "inconclusive"]
    why: str = ""


class EvalReport(msgspec.Struct, frozen=True, kw_only=True):
    """All checks of one candidate against the live version. No data is inconclusive."""

    policy_version: int
    against_version: int
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Literal["pass", "fail", "inconclusive"]:
        verdicts = {check.verdict for check in self.checks}
        if "fail" in verdicts:
            return "fail"
        return "pass" if verdicts == {"pass"} else "inconclusive"


ReleaseState = Literal[
    "published",
    "candidate",
    "gate_passed",
    "gate_held",
    "canary",
    "promoted",
    "rolled_back",
    "quarantined",
]


class Release(Record, frozen=True, kw_only=True):
    """One event in the life of a version. State is the fold of these: the log is the audit."""

    TOPIC = "releases"
    policy_version: int
    """The version it is about; for `rolled_back` the one that is taken out of service."""
    state: ReleaseState
    target_version: int | None = None
    """`rolled_back`: the version that serves from now on."""
    actor: str
    reason: str
    at: float
    evidence: EvalReport | None = None


class NodeStatus(Record, frozen=True, kw_only=True):
    """Heartbeat and acknowledgement of one serving replica."""

    TOPIC = "nodes"
    node: str
    at: float
    policy_version: int
    weights_digest: str
    state: Literal["serving", "staging", "refused"]
    detail: str = ""
    swap_pause_ms: float | None = None
    """Of the swap this acknowledges: how long requests were held."""
    fetched_bytes: int | None = None
    full_bytes: int | None = None
    used_delta: bool | None = None
    num_running: int = 0
    num_waiting: int = 0


class Ledger(Record, frozen=True, kw_only=True):
    """What one process read and what became of it, since its state began. Always balances."""

    TOPIC = "ledgers"
    process: str
    at: float
    read: dict[str, int]
    """By kind (traces, feedback, episodes)."""
    outcomes: dict[str, dict[str, int]]
    """By kind: outcome name to count, what is still pending included."""

    @property
    def balanced(self) -> bool:
        return all(sum(self.outcomes.get(kind, {}).values()) == n for kind, n in self.read.items())


class DeadLetter(Record, frozen=True, kw_only=True):
    """A record nobody could read, kept with the reason."""

    TOPIC = "dead_letters"
    topic: str
    reason: str
    value: bytes
    at: float


RECORD_TYPES: tuple[type[Record], ...] = (
    Trace, Feedback, Episode, PolicyManifest, Release, NodeStatus, Ledger, DeadLetter,
)  # fmt: skip
TYPE_BY_TOPIC: Mapping[str, type[Record]] = {record.TOPIC: record for record in RECORD_TYPES}
R = TypeVar("R", bound=Record)
_encoder = msgspec.msgpack.Encoder()
_decoders: Mapping[type[Record], msgspec.msgpack.Decoder[Any]] = {
    record: msgspec.msgpack.Decoder(record) for record in RECORD_TYPES
}


def encode(record: Record) -> bytes:
    """The record as msgpack: what goes on the log."""
    return _encoder.encode(record)


def decode(record_type: type[R], value: bytes) -> R:
    """Read one record; raises `InvalidRecord` for anything that is not it."""
    try:
        record: R = _decoders[record_type].decode(value)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRecord(f"{record_type.__name__}: {error}") from error
    if record.schema > record_type.SCHEMA:
        raise InvalidRecord(
            f"{record_type.__name__}: expected schema <= {record_type.SCHEMA}, got {record.schema}"
        )
    return record
