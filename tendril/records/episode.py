"""Episode: the traces of one piece of work, closed, with reward."""

import math
from typing import Literal, get_args

import msgspec

from tendril.records.base import Record
from tendril.records.trace import Exploration, Lane, PolicySpan, Route

Maturity = Literal["provisional", "revised", "final"]
"""How much of a trace's window had passed, from little to all."""
MATURITIES: tuple[Maturity, ...] = get_args(Maturity)
MAX_LOGPROB = 1e-3
"""A log-probability is at most 0; rounding may leave it a little above."""


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

    @property
    def is_sound(self) -> bool:
        """Whether its numbers can be scored: one that cannot would spoil a whole batch."""
        explored = self.exploration
        return (
            len(self.prompt_token_ids) > 0
            and len(self.completion_token_ids) > 0
            and min(self.prompt_token_ids + self.completion_token_ids) >= 0
            and sum(span.num_tokens for span in self.policy_spans) == len(self.completion_token_ids)
            and 0 < self.temperature < math.inf
            and all(map(math.isfinite, self.credit))
            and all(-math.inf < x <= MAX_LOGPROB for x in self.behavior_logprobs)
            and (
                explored is None
                or (0 <= explored.share < 1 and explored.silence_logprob <= MAX_LOGPROB)
            )
        )


class Graded(msgspec.Struct, frozen=True, kw_only=True):
    """A grader's score that came in for the trace, right or wrong."""

    grader: str
    """`name@version`."""
    at: float


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
    raw_reward: float | None = None
    """The reward before it was cut to [-1, 1]."""
    centred_reward: float | None = None
    """The reward less the mean of its bucket; None where it is unknown, or no means were fitted."""
    bucket: str = ""
    """Surface and language, as in `editor/python`."""
    weight: float = 1.0
    """How much of an observation this is (an ignored suggestion counts half), after `cap`."""
    cap: float = 1.0
    """What the caps on users and tenants leave of it, from 0 to 1."""
    capped_by: str = ""
    """Which cap lowered it; empty: none."""
    maturity_weight: float = 1.0
    """What an early look stands for: outcomes seen by its age over all that will come; `weight`
    includes it."""
    fits_digest: str = ""
    """Of the delays and means that were used; empty: none."""
    account_age_s: float | None = None
    """Of its user, when the trace was logged; None: as old as the service, or not known."""
    components: dict[str, float]
    """Reward parts by name; what was not observed is absent."""
    pending: tuple[str, ...] = ()
    """What the reward leaves out because it is not due yet."""
    censored: tuple[str, ...] = ()
    """What it leaves out because it cannot be observed any more (file deleted, branch switched)."""
    missing: tuple[str, ...] = ()
    """What it leaves out although it was due."""
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
    maturity: Maturity = "final"
    previous_maturity: Maturity | None = None
    """Of the last revision that could be trained on before this one."""
    graded: tuple[Graded, ...] = ()
    quarantine_ids: tuple[str, ...] = ()
    """What holds it back: nobody trains on it. A release makes a new revision without them."""
    group_id: str | None = None
    train_consent: bool = True
    untrainable: str | None = None

    def is_first(self, ripe: Maturity) -> bool:
        """Whether it is the first revision of its trace that is at least as mature as `ripe`."""
        least, before = MATURITIES.index(ripe), self.previous_maturity
        is_new = before is None or MATURITIES.index(before) < least
        return is_new and MATURITIES.index(self.maturity) >= least

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
