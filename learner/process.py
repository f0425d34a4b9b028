"""The learner process: read episodes, step, checkpoint, publish, until told to stop.

What starts the next step: `batch_episodes` usable episodes. What it waits for: the log. Every
step is a function of the state, the episodes behind its offsets in log order, and the anchor. When
a version is published, and which one is the anchor, depends on the clock and the shipper as well.
"""

import errno
import fcntl
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from kernels.scoring import silence_token_id
from learner import state as states
from learner.anchor import Anchor
from learner.batches import Eligibility, drop_reason
from learner.publish import publish
from learner.state import LearnerState
from learner.step import NumericsGap, train_step
from tendril import telemetry
from tendril.blobs import BlobStore, CorruptObject
from tendril.files import make_folder
from tendril.log import EventLog, LogRecord, LogUnavailable, TopicPartition, open_log
from tendril.model_folder import FIRST_VERSION, tokenizer_digest
from tendril.records import Episode, InvalidRecord, Ledger, decode
from tendril.settings import Settings
from tendril.withdrawals import Withdrawals

log = logging.getLogger(__name__)

LEDGER_INTERVAL_S = 2.0
POLL_S = 0.2
RETRY_S = 1.0
DAMAGED_RETRY_S = 5.0


class Learner:
    """The online lane, fed from the log."""

    def __init__(self, settings: Settings, event_log: EventLog) -> None:
        torch.set_num_threads(settings.learner.num_threads)
        self._settings, self._log = settings, event_log
        self._checkpoint = settings.serving.checkpoint
        self._path = settings.path(Path("learner/checkpoint.pt"))
        self._blobs = BlobStore(settings.path(settings.shipping.store))
        self._silence = silence_token_id(self._checkpoint, settings.serving.silence_token)
        self._tokenizer_digest = tokenizer_digest(self._checkpoint)
        self.state: LearnerState = states.load(
            self._path, self._checkpoint, settings.learner
        ) or states.new_state(self._checkpoint, settings.learner, FIRST_VERSION)
        self._anchor = Anchor(event_log, self._blobs, self._checkpoint, FIRST_VERSION)
        self._withdrawals = Withdrawals(event_log, settings.privacy.tenants)
        self._reader = event_log.reader(None, (Episode.TOPIC,))  # the checkpoint says where
        self._refuse_foreign_log()
        self._reader.seek(self.state.offsets)
        self._unread: deque[LogRecord] = deque()
        self._batch: dict[str, Episode] = {}  # by id; joins the state at the next step, with
        self._dropped: Counter[str] = Counter()  # what was dropped meanwhile
        self._num_read = self.state.num_read  # and what is behind both
        self._batch_offsets = dict(self.state.offsets)
        self._published_at = time.monotonic()
        self._follow_at = 0.0
        self._telemetry = telemetry.setup("learner", settings.telemetry)

    def _refuse_foreign_log(self) -> None:
        """Raises `ValueError` if the state has read further than the log reaches."""
        ends = self._log.end_offsets((Episode.TOPIC,))
        for place, offset in self.state.offsets.items():
            if offset > ends.get(place, 0):
                raise ValueError(
                    f"{self._path}: expected an offset of {place.topic} of at most "
                    f"{ends.get(place, 0)}, the log's end, got {offset}. The log is another one "
                    "or was cut; remove the checkpoint to learn from this one"
                )

    def turn(self) -> None:
        """Read for a moment; step when a batch is full; publish when it is time."""
        if self.state.unpublished:
            self._announce()  # before any step: the version is these weights
        self._follow_anchor()
        self._return_after_rollback()
        if self._withdrawals.follow():
            self._drop_withdrawn()
        batch_episodes = self._settings.learner.batch_episodes
        if not self._unread:
            self._unread.extend(self._reader.poll(500, POLL_S))
        while self._unread and len(self._batch) < batch_episodes:
            self._consider(self._unread[0])
            self._unread.popleft()
        if len(self._batch) >= batch_episodes:
            self._step()
        self._publish_if_due()

    def _follow_anchor(self) -> None:
        """A damaged live version must not end learning: its successor may be whole."""
        if time.monotonic() < self._follow_at:
            return
        try:
            if self._anchor.follow():
                log.info("anchor is now version %d", self._anchor.version)
        except CorruptObject as error:
            self._follow_at = time.monotonic() + DAMAGED_RETRY_S
            log.error("the anchor stays version %d: %s", self._anchor.version, error)

    def _consider(self, record: LogRecord) -> None:
        """Put one episode into the batch, or count why not."""
        try:
            episode = decode(Episode, record.value)
        except InvalidRecord as error:
            self._log.append([(record.key, record.dead_letter(error, time.time()))])
            reason: str | None = "invalid"
        else:
            reason = self._drop_reason(episode)
            if reason is None:
                self._batch[episode.episode_id] = episode
        self._num_read += 1
        self._batch_offsets[TopicPartition(record.topic, record.partition)] = record.offset + 1
        if reason is not None:
            self._dropped[reason] += 1
            self._telemetry.count("tendril.learner.dropped", reason=reason)

    def _drop_reason(self, episode: Episode) -> str | None:
        if episode.episode_id in self._batch or episode.episode_id in self.state.seen_ids:
            return "duplicate"
        ripe = self._settings.learner.min_maturity
        if not episode.is_first(ripe):
            return "unripe" if episode.previous_maturity is None else "revision"
        if withdrawn := self._withdrawals.reason(episode):
            return withdrawn
        config = self.state.model.config
        eligible = Eligibility(
            policy_version=self.state.policy_version,
            max_policy_lag=self._settings.learner.max_policy_lag,
            tokenizer_digest=self._tokenizer_digest,
            vocab_size=config.vocab_size,
            max_context_tokens=config.max_position_embeddings,
            silence_token_id=self._silence,
        )
        return drop_reason(episode, eligible)

    def _drop_withdrawn(self) -> None:
        """What was decided since episodes were read counts for this step already."""
        for episode in list(self._batch.values()):
            if reason := self._withdrawals.reason(episode):
                del self._batch[episode.episode_id]
                self._dropped[reason] += 1
                self._telemetry.count("tendril.learner.dropped", reason=reason)

    def _step(self) -> None:
        """Train on the batch; either way it joins the state, with all that was read before it."""
        state, batch = self.state, list(self._batch.values())
        outcome = "trained"
        try:
            with self._telemetry.span("tendril.learner.step"):
                metrics = train_step(
                    state, batch, self._anchor.model, self._anchor.version,
                    self._settings.learner, self._silence,
                )  # fmt: skip
            self._after_step(batch, metrics)
        except (NumericsGap, FloatingPointError) as error:
            outcome = "numerics gap" if isinstance(error, NumericsGap) else "not finite"
            log.error("step refused: %s", error)
        state.add(self._dropped + Counter({outcome: len(batch)}))
        state.remember(self._batch)
        state.num_read, state.offsets = self._num_read, dict(self._batch_offsets)
        self._batch, self._dropped = {}, Counter()
        due = state.num_steps % self._settings.learner.checkpoint_every_steps == 0
        if due and outcome == "trained":
            self.save()

    def save(self) -> None:
        """Write the checkpoint. What is read and not yet trained on will be read again."""
        states.save(self.state, self._path)

    def _after_step(self, batch: list[Episode], metrics: dict[str, float]) -> None:
        state = self.state
        state.steps_since_publish += 1
        state.metrics = metrics
        state.recipe_digest = batch[-1].recipe_digest
        newest = max((e.feedback_at for e in batch if e.feedback_at), default=None)
        state.newest_feedback_at = max(
            filter(None, (state.newest_feedback_at, newest)), default=None
        )
        for name in ("loss", "kl_k3", "numerics_gap"):
            if name in metrics:
                self._telemetry.gauge(f"tendril.learner.{name.removesuffix('_k3')}", metrics[name])
        self._telemetry.count("tendril.learner.steps")

    def _publish_if_due(self) -> None:
        settings = self._settings.learner
        due = time.monotonic() - self._published_at >= settings.publish_every_s
        if due and self.state.steps_since_publish >= settings.min_steps_per_version:
            newest = max(self.state.policy_version, self._anchor.newest)
            self.state.policy_version = newest + 1
            self.state.unpublished = True
            self.save()  # first: a restart publishes the same weights
            self._announce()

    def _announce(self) -> None:
        """Store and announce the version that the checkpoint holds."""
        with self._telemetry.span("tendril.learner.publish"):
            manifest = publish(
                self.state, self._blobs, self._checkpoint, self._tokenizer_digest,
                self._settings.learner, time.time(), self.state.metrics,
            )  # fmt: skip
        self._log.append([("policy", manifest)])
        self.state.parent = self.state.policy_version
        self.state.unpublished = False
        self.state.steps_since_publish = 0
        self._published_at = time.monotonic()
        self.save()
        log.info("published version %d after %d steps", manifest.policy_version,
                 manifest.num_steps)  # fmt: skip

    def _return_after_rollback(self) -> None:
        """A version was taken out of service: go on from the one that serves now."""
        withdrawn, answered = self._anchor.withdrawn, self.state.num_rollbacks
        if withdrawn is None or self._anchor.num_rollbacks == answered or self._anchor.is_behind:
            return
        self.state.num_rollbacks = self._anchor.num_rollbacks
        if self.state.parent < withdrawn or self.state.parent == self._anchor.version:
            return  # these weights come from before it
        self.state.model.load_state_dict(self._anchor.model.state_dict())
        self.state.optimizer = states.make_optimizer(self.state.model, self._settings.learner)
        self.state.parent = self._anchor.version
        self.state.steps_since_publish = 0
        self.save()
        log.info("went back to version %d", self._anchor.version)

    def ledger(self) -> Ledger:
        """Episodes read, by what became of them; `pending` are in the next batch."""
        outcomes = dict(Counter(self.state.counts) + self._dropped)
        outcomes["pending"] = len(self._batch)
        return Ledger(
            process="learner",
            at=time.time(),
            read={"episodes": self._num_read},
            outcomes={"episodes": outcomes},
        )

    def close(self) -> None:
        self._reader.close()
        self._anchor.close()
        self._withdrawals.close()
        self._telemetry.shutdown()


def run(settings: Settings, stop: threading.Event) -> None:
    """Learn until `stop` is set. Raises `BlockingIOError` where another learner is at work."""
    event_log = open_log(settings)
    with _alone(settings.path(Path("learner/lock"))):
        learner = Learner(settings, event_log)
        try:
            _learn(learner, event_log, stop)
            learner.save()
            event_log.append([("learner", learner.ledger())])
        finally:
            learner.close()
            event_log.close()


def _learn(learner: Learner, event_log: EventLog, stop: threading.Event) -> None:
    next_ledger = 0.0
    while not stop.is_set():
        try:
            learner.turn()
            if time.monotonic() >= next_ledger:
                event_log.append([("learner", learner.ledger())])
                next_ledger = time.monotonic() + LEDGER_INTERVAL_S
        except LogUnavailable as error:
            log.warning("the event log is away: %s", error)
            stop.wait(RETRY_S)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One learner a checkpoint; the lock goes with the process, however that ends."""
    make_folder(path.parent)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            what = "expected no other learner in this workspace, found one; stop it first"
            raise BlockingIOError(errno.EWOULDBLOCK, what, str(path)) from error
        yield
