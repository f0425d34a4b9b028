"""The laptop engine: continuous batching of a Llama-like Hugging Face model, in torch.

One thread owns the model. Each turn of its loop: apply a waiting weight change, admit waiting
requests into slots (what no slot knows of their prompts is prefilled, similar lengths together),
then decode one token for every running request. Float32 arithmetic on bfloat16-valued weights, so
that the learner's log-probs agree to rounding.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedModel

from kernels.scoring import length_buckets, load_policy
from serving.engine import (
    EngineRequest,
    EngineStats,
    SampledToken,
    SwapRefused,
    SwapResult,
    check_request,
)
from serving.torch_engine.forward import last_logits, prepare
from serving.torch_engine.kv_slots import KeyValueSlots
from serving.torch_engine.lanes import Lanes, latest_offline
from serving.torch_engine.running import Running, deliver
from serving.torch_engine.sampler import draw
from serving.torch_engine.slot_table import SlotTable
from serving.torch_engine.weights import StagedWeights, runtime_digest
from tendril.records import Lane

log = logging.getLogger(__name__)

MAX_WAVES = 2
"""Prefills a turn: first prompts, then those that share their prefixes; then all decode."""
PAUSE_TIMEOUT_S = 30.0


class TorchEngine:
    """See `Engine`."""

    def __init__(
        self,
        folder: Path,
        policy_version: int,
        *,
        max_running: int,
        max_waiting: int,
        max_context_tokens: int,
        silence_token_id: int | None,
        num_threads: int,
        lent_slots: int = 0,
        seed: int | None = None,
    ) -> None:
        torch.set_num_threads(num_threads)
        if seed is not None:
            torch.manual_seed(seed)
        self._model = prepare(load_policy(folder))
        first = StagedWeights(folder, self._model)
        self._stop_ids = {*_end_ids(self._model), silence_token_id} - {None}
        self._silence_token_id = silence_token_id
        self._policy_version, self._digest, self._dtypes = (
            policy_version, first.digest, first.dtypes,
        )  # fmt: skip
        self._cache = KeyValueSlots(self._model.config, max_running, max_context_tokens)
        self._table = SlotTable(self._cache)
        self._lanes = Lanes(max_waiting, lent_slots)
        self._changing = threading.Lock()
        self._staged: tuple[int, StagedWeights] | None = None
        self._swap: tuple[int, StagedWeights, Future[float]] | None = None
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[SampledToken, None]:
        check_request(request, self._cache.capacity, self._model.config.vocab_size)
        generator = None
        if request.seed is not None:
            generator = torch.Generator().manual_seed(request.seed)
        running = Running(
            request, asyncio.get_running_loop(), asyncio.Queue(), generator,
            list(request.prompt_token_ids),
        )  # fmt: skip
        with self._wake:
            if self._closed:
                raise RuntimeError("the engine is closed")
            self._lanes.put(running)
            self._wake.notify()
        try:
            while True:
                token = await running.tokens.get()
                if isinstance(token, Exception):
                    raise token
                yield token
                if token.finish:
                    return
        finally:
            running.aborted = True
            with self._wake:
                self._lanes.discard(running)

    def stage(self, policy_version: int, folder: Path) -> str:
        try:
            staged = StagedWeights(folder, self._model)
        except (OSError, ValueError) as error:  # not there, torn, or of another model
            raise SwapRefused(str(error)) from error
        with self._changing:
            self._staged = (policy_version, staged)
        return staged.digest

    def swap(self, policy_version: int) -> SwapResult:
        with self._changing:  # one change at a time: the digest is of the version that was asked
            if self._staged is None or self._staged[0] != policy_version:
                raise SwapRefused(
                    f"expected version {policy_version} staged, got "
                    f"{self._staged[0] if self._staged else 'none'}"
                )
            paused: Future[float] = Future()
            with self._wake:
                self._swap = (*self._staged, paused)
                self._wake.notify()
            pause_ms = self._paused(paused)
            self._staged = None
            self._digest = runtime_digest(self._model, self._dtypes)
            return SwapResult(policy_version, pause_ms, self._digest)

    def _paused(self, paused: Future[float]) -> float:
        try:
            return paused.result(timeout=PAUSE_TIMEOUT_S)
        except TimeoutError as error:
            with self._wake:
                if self._swap is not None:  # not taken up: it must not happen later, unasked
                    self._swap = None
                    raise SwapRefused(f"a step took over {PAUSE_TIMEOUT_S:.0f} s") from error
            return paused.result()

    def stats(self) -> EngineStats:
        return EngineStats(
            self._policy_version,
            self._digest,
            len(self._table.active),
            len(self._lanes),
            self._table.num_reused_tokens,
        )

    def check_room(self, lane: Lane) -> None:
        self._lanes.check_room(lane)

    def check(self) -> None:
        if not self._thread.is_alive():
            raise RuntimeError("the engine's thread has ended")

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while True:
            with self._wake:
                while not (self._closed or self._lanes or self._table.active or self._swap):
                    self._wake.wait()
                if self._closed:
                    break
            try:
                self._turn()
            except Exception as error:  # the engine must outlive one bad batch
                log.exception("engine step failed; its requests are answered with an error")
                self._fail(list(self._table.active), error)
        with self._wake:
            waiting = self._lanes.drain()
        self._fail([*self._table.active, *waiting], RuntimeError("the engine is closed"))

    @torch.inference_mode()
    def _turn(self) -> None:
        self._apply_swap()
        for running in [running for running in self._table.active if running.aborted]:
            self._table.remove(running)
        for _ in range(MAX_WAVES):
            wave = self._admit()
            for bucket in length_buckets([running.num_pending for running in wave]):
                self._step([wave[i] for i in bucket])
        if self._table.active:
            self._step(list(self._table.active))

    def _apply_swap(self) -> None:
        with self._wake:
            change, self._swap = self._swap, None
        if change is None:
            return
        policy_version, staged, paused = change
        started = time.perf_counter()
        staged.apply(self._model)
        self._policy_version, self._dtypes = policy_version, staged.dtypes
        self._table.forget()
        paused.set_result((time.perf_counter() - started) * 1000)

    def _admit(self) -> list[Running]:
        """Requests to prefill together; one whose prefix they will hold comes in the next wave."""
        wave: list[Running] = []
        while (running := self._next(wave)) is not None:
            if running.queue_s is None:
                running.queue_s = time.monotonic() - running.arrived_at
            self._table.add(running)
            wave.append(running)
        return wave

    def _next(self, wave: list[Running]) -> Running | None:
        """The next request for this wave, with a slot free for it."""
        active = self._table.active
        with self._wake:
            running = self._lanes.take(active, self._cache.num_slots)
            if running is None:
                return None
            if wave and self._table.gains_by_waiting(running, wave):
                self._lanes.put_back(running)
                return None
            if len(active) == self._cache.num_slots:
                set_back = latest_offline(active)
                self._table.remove(set_back)
                self._lanes.put_back(set_back)
                if set_back in wave:
                    wave.remove(set_back)
            return running

    def _step(self, rows: Sequence[Running]) -> None:
        """One forward pass and one sampled token a row; those that end make room."""
        slots = [self._table.active.index(running) for running in rows]
        logits_BV = last_logits(self._model, self._cache, rows, slots)
        sampled = draw(logits_BV, [running.row for running in rows], self._silence_token_id)
        silence = sampled.silence_logprobs_B
        columns = zip(
            rows, sampled.tokens_B.tolist(), sampled.logprobs_B.tolist(), sampled.top_logprobs,
            silence.tolist() if silence is not None else [None] * len(rows),
            strict=True,
        )  # fmt: skip
        for running, token, logprob, top, silence_logprob in columns:
            self._extend(running, token, logprob, silence_logprob, top)
        for running in reversed(rows):  # the last slots first: the others need not move
            if self._finish(running):
                self._table.remove(running)
        deliver(rows)

    def _extend(
        self, running: Running, token: int, logprob: float, silence_logprob: float | None,
        top: tuple[tuple[int, float], ...],
    ) -> None:  # fmt: skip
        is_first = running.num_sampled == 0
        running.num_cached = len(running.token_ids)
        running.token_ids.append(token)
        running.outbox.append(
            SampledToken(
                token, logprob, self._policy_version, self._finish(running),
                silence_logprob if is_first else None, running.queue_s if is_first else None, top,
            )
        )  # fmt: skip

    def _finish(self, running: Running) -> Literal["stop", "length"] | None:
        request, last = running.request, running.token_ids[-1]
        if last in self._stop_ids or last in request.stop_token_ids:
            return "stop"
        return "length" if running.num_sampled >= request.max_tokens else None

    def _fail(self, requests: Sequence[Running], error: Exception) -> None:
        for running in reversed(requests):
            if running in self._table.active:
                self._table.remove(running)
            running.outbox = [error]
        deliver(requests)


def _end_ids(model: PreTrainedModel) -> list[int | None]:
    """End-of-text ids: a configuration may name none, one or several."""
    ids = model.config.eos_token_id
    return ids if isinstance(ids, list) else [ids]
