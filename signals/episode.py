"""Builds the episode of one judged trace. Pure: the same inputs make the same bytes."""

import msgspec

from signals.centring import centred
from signals.fitted import FitsInUse
from signals.judge import Judgement
from signals.trust.cap_state import Weighed
from tendril.ids import digest_of
from tendril.records import Episode, Graded, Maturity, Segment, Trace


def is_held_out(session_id: str, share: float) -> bool:
    """Whether the session is kept from the learner: by hash, so a session never changes sides."""
    return int(digest_of("held_out", session_id)[:8], 16) / 2**32 < share


def revision_id(trace_id: str, recipe_digest: str, revision: int) -> str:
    """The episode's id: a replay makes the same one."""
    return digest_of(trace_id, recipe_digest, str(revision))


def build_episode(
    trace: Trace,
    judgement: Judgement,
    *,
    recipe_digest: str,
    closed_at: float,
    held_out: bool,
    revision: int = 0,
    supersedes: str | None = None,
    maturity: Maturity = "final",
    previous_maturity: Maturity | None = None,
    graded: tuple[Graded, ...] = (),
    quarantine_ids: tuple[str, ...] = (),
) -> Episode:
    """One trace as an episode."""
    return Episode(
        episode_id=revision_id(trace.trace_id, recipe_digest, revision),
        session_id=trace.session_id,
        tenant=trace.tenant,
        user_key=trace.user_key,
        lane=trace.lane,
        route=trace.route,
        closed_at=closed_at,
        served_at=trace.served_at,
        feedback_at=judgement.feedback_at,
        segments=(_segment(trace, judgement.credit),),
        reward=judgement.reward,
        raw_reward=judgement.raw_reward,
        bucket=judgement.bucket,
        weight=judgement.weight,
        components=judgement.components,
        pending=judgement.pending,
        censored=judgement.censored,
        missing=judgement.missing,
        outcome=judgement.outcome,
        accepted_bytes=judgement.accepted_bytes,
        shown_bytes=judgement.shown_bytes,
        held_out=held_out,
        tokenizer_digest=trace.tokenizer_digest,
        recipe_digest=recipe_digest,
        revision=revision,
        supersedes=supersedes,
        maturity=maturity,
        previous_maturity=previous_maturity,
        graded=graded,
        quarantine_ids=quarantine_ids,
        train_consent=trace.train_consent,
        untrainable=trace.untrainable,
    )


def with_caps(episode: Episode, caps: Weighed) -> Episode:
    """The episode, of which that much is left."""
    return msgspec.structs.replace(
        episode,
        weight=episode.weight * caps.weight,
        cap=caps.weight,
        capped_by=caps.reason,
        account_age_s=caps.account_age_s,
    )


def with_fits(episode: Episode, fits: FitsInUse, age_s: float) -> Episode:
    """The episode, centred, and an early look's weight raised to what it stands for."""
    factor = 1.0 if episode.reward is None else fits.delays.weights_at(age_s, episode.bucket)
    return msgspec.structs.replace(
        episode,
        weight=episode.weight * factor,
        maturity_weight=factor,
        centred_reward=centred(episode.reward, episode.bucket, fits.centres),
        fits_digest=fits.digest,
    )


def _segment(trace: Trace, credit: tuple[float, ...]) -> Segment:
    return Segment(
        trace_id=trace.trace_id,
        prompt_token_ids=trace.prompt_token_ids,
        completion_token_ids=trace.completion_token_ids,
        loss_mask=(True,) * len(trace.completion_token_ids),
        behavior_logprobs=trace.behavior_logprobs,
        policy_spans=trace.policy_spans,
        credit=credit,
        temperature=trace.sampling.temperature,
        exploration=trace.exploration,
    )
