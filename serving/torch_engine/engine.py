"""The laptop engine: continuous batching of a Llama-like Hugging Face model, in torch.

One thread owns the model. Each turn of its loop: apply a waiting weight change, admit waiting
requests into free slots (one padded prefill), then decode one token for every running request.
Float32 arithmetic on bfloat16-valued weights, so that the learner's log-probs agree to rounding.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedModel

from kernels.scoring import load_policy
from serving.engine import (
    EngineBusy,
    EngineRequest,
    EngineStats,
    SampledToken,
    SwapRefused,
    SwapResult,
)
from serving.torch_engine.kv_slots import KeyValueSlots
from serving.torch_engine.running import Running, deliver
from serving.torch_engine.sampler import draw
from serving.torch_engine.weights import StagedWeights, runtime_digest

log = logging.getLogger(__name__)


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
        seed: int | None = None,
    ) -> None:
        torch.set_num_threads(num_threads)
        if seed is not None:
            torch.manual_seed(seed)
        self._model = load_policy(folder)
        first = StagedWeights(folder, self._model)
        self._stop_ids = {*_end_ids(self._model), silence_token_id} - {None}
        self._silence_token_id = silence_token_id
        self._policy_version, self._digest, self._dtypes = (
            policy_version, first.digest, first.dtypes,
        )  # fmt: skip
        self._slots = KeyValueSlots(self._model.config, max_running, max_context_tokens)
        self._free_slots = list(range(max_running))
        self._max_waiting = max_waiting
        self._waiting: deque[Running] = deque()
        self._running: list[Running] = []
        self._changing = threading.Lock()
        self._staged: tuple[int, StagedWeights] | None = None
        self._swap: tuple[int, StagedWeights, Future[float]] | None = None
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[SampledToken, None]:
        self._check(request)
        generator = None
        if request.seed is not None:
            generator = torch.Generator().manual_seed(request.seed)
        running = Running(request, asyncio.get_running_loop(), asyncio.Queue(), generator)
        with self._wake:
            num_waiting = self.stats().num_waiting
            if num_waiting >= self._max_waiting:
                raise EngineBusy(f"{num_waiting} requests wait, limit {self._max_waiting}")
            self._waiting.append(running)
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

    def _check(self, request: EngineRequest) -> None:
        """A prompt that cannot be run must not reach the batch: it would fail its neighbours."""
        prompt, capacity = request.prompt_token_ids, self._slots.capacity
        vocabulary = self._model.config.vocab_size
        if not prompt or len(prompt) + request.max_tokens > capacity:
            raise ValueError(
                f"prompt and max_tokens: expected 1 to {capacity} tokens together, "
                f"got {len(prompt)} + {request.max_tokens}"
            )
        if min(prompt) < 0 or max(prompt) >= vocabulary:
            raise ValueError(
                f"prompt: expected token ids from 0 to {vocabulary - 1}, "
                f"got {min(prompt)} to {max(prompt)}"
            )

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
            pause_ms = paused.result(timeout=30)
            self._staged = None
            self._digest = runtime_digest(self._model, self._dtypes)
            return SwapResult(policy_version, pause_ms, self._digest)

    def stats(self) -> EngineStats:
        with self._wake:
            num_waiting = sum(not running.aborted for running in self._waiting)
        return EngineStats(self._policy_version, self._digest, len(self._running), num_waiting)

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while True:
            with self._wake:
                while not (self._closed or self._waiting or self._running or self._swap):
                    self._wake.wait()
                if self._closed:
                    return
            try:
                self._turn()
            except Exception as error:  # the engine must outlive one bad batch
                log.exception("engine step failed; its requests are answered with an error")
                self._fail_running(error)

    @torch.inference_mode()
    def _turn(self) -> None:
        self._apply_swap()
        self._drop_aborted()
        admitted = self._admit()
        if admitted:
            self._prefill(admitted)
        decoding = [running for running in self._running if running not in admitted]
        if decoding:
            self._decode(decoding)
        self._deliver()

    def _apply_swap(self) -> None:
        if self._swap is None:
            return
        policy_version, staged, paused = self._swap
        self._swap = None
        started = time.perf_counter()
        staged.apply(self._model)
        self._policy_version, self._dtypes = policy_version, staged.dtypes
        paused.set_result((time.perf_counter() - started) * 1000)

    def _drop_aborted(self) -> None:
        for running in [running for running in self._running if running.aborted]:
            self._release(running)
        with self._wake:
            if any(running.aborted for running in self._waiting):
                self._waiting = deque(r for r in self._waiting if not r.aborted)

    def _release(self, running: Running) -> None:
        self._running.remove(running)
        self._free_slots.append(running.slot)

    def _admit(self) -> list[Running]:
        admitted: list[Running] = []
        with self._wake:
            while self._waiting and self._free_slots:
                running = self._waiting.popleft()
                running.slot = self._free_slots.pop()
                running.queue_s = time.monotonic() - running.arrived_at
                self._running.append(running)
                admitted.append(running)
        return admitted

    def _prefill(self, admitted: list[Running]) -> None:
        prompts = [running.request.prompt_token_ids for running in admitted]
        width = max(map(len, prompts))
        ids_BQ = torch.zeros(len(prompts), width, dtype=torch.long)
        for i, prompt in enumerate(prompts):  # right padding: later tokens overwrite its cache
            ids_BQ[i, : len(prompt)] = torch.tensor(prompt)
        positions_BQ = torch.arange(width).expand(len(prompts), width)
        last_B = torch.tensor([len(prompt) - 1 for prompt in prompts])
        self._step(admitted, ids_BQ, positions_BQ, last_B)

    def _decode(self, decoding: list[Running]) -> None:
        ids_BQ = torch.tensor([[running.last_token] for running in decoding])
        positions_BQ = torch.tensor([[running.next_position] for running in decoding])
        self._step(decoding, ids_BQ, positions_BQ, torch.zeros(len(decoding), dtype=torch.long))

    def _step(
        self,
        rows: list[Running],
        ids_BQ: torch.Tensor,
        positions_BQ: torch.Tensor,
        last_B: torch.Tensor,
    ) -> None:
        """One forward pass and one sampled token a row, read at column `last_B`."""
        mask = self._slots.select([running.slot for running in rows], positions_BQ)
        hidden_BQD = self._model.base_model(
            input_ids=ids_BQ, position_ids=positions_BQ, attention_mask=mask,
            past_key_values=self._slots, use_cache=True,
        ).last_hidden_state  # fmt: skip
        hidden_BD = hidden_BQD[torch.arange(len(rows)), last_B]
        logits_BV = self._model.get_output_embeddings()(hidden_BD)
        sampled = draw(logits_BV, [running.row for running in rows], self._silence_token_id)
        tokens, logprobs = sampled.tokens_B.tolist(), sampled.logprobs_B.tolist()
        silence = sampled.silence_logprobs_B
        for i, running in enumerate(rows):
            first = running.num_sampled == 0
            running.num_sampled += 1
            running.last_token = tokens[i]
            running.outbox.append(
                SampledToken(
                    tokens[i],
                    logprobs[i],
                    self._policy_version,
                    self._finish(running),
                    float(silence[i]) if first and silence is not None else None,
                    running.queue_s if first else None,
                )
            )

    def _finish(self, running: Running) -> Literal["stop", "length"] | None:
        if running.last_token in self._stop_ids:
            return "stop"
        return "length" if running.num_sampled >= running.request.max_tokens else None

    def _deliver(self) -> None:
        sampled = [running for running in self._running if running.outbox]
        for running in sampled:
            last = running.outbox[-1]
            if isinstance(last, SampledToken) and last.finish:
                self._release(running)
        deliver(sampled)

    def _fail_running(self, error: Exception) -> None:
        failed = list(self._running)
        for running in failed:
            self._release(running)
            running.outbox = [error]
        deliver(failed)


def _end_ids(model: PreTrainedModel) -> list[int | None]:
    """End-of-text ids: a configuration may name none, one or several."""
    ids = model.config.eos_token_id
    return ids if isinstance(ids, list) else [ids]
