"""The laptop engine: continuous batching of any Hugging Face causal language model, in torch.

One thread owns the model. Each turn of its loop: apply a waiting weight change, admit waiting
requests into free slots (one padded prefill), then decode one token for every running request.
Float32 arithmetic on bfloat16-valued weights, so that the learner's log-probs agree to rounding.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from serving.engine import (
    EngineBusy,
    EngineRequest,
    EngineStats,
    SampledToken,
    SwapRefused,
    SwapResult,
)
from serving.kv_slots import KeyValueSlots
from serving.sampler import Row, draw
from serving.weights import StagedWeights, runtime_digest
from tendril.weights import InvalidWeights

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Running:
    """One request inside the engine."""

    request: EngineRequest
    loop: asyncio.AbstractEventLoop
    tokens: asyncio.Queue[SampledToken | Exception]
    generator: torch.Generator | None
    slot: int = -1
    num_sampled: int = 0
    last_token: int = 0
    aborted: bool = False
    outbox: list[SampledToken] = field(default_factory=list)

    @property
    def row(self) -> Row:
        first = self.num_sampled == 0
        return Row(
            self.request.temperature, self.request.top_p, self.generator,
            first, first and self.request.forbid_silence,
        )  # fmt: skip


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
        self._model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        ).eval()
        first = StagedWeights(folder, self._model)
        self._stop_ids = {self._model.config.eos_token_id, silence_token_id} - {None}
        self._silence_token_id = silence_token_id
        self._policy_version, self._digest, self._dtypes = (
            policy_version, first.digest, first.dtypes,
        )  # fmt: skip
        self._slots = KeyValueSlots(self._model.config, max_running, max_context_tokens)
        self._free_slots = list(range(max_running))
        self._max_waiting = max_waiting
        self._waiting: deque[_Running] = deque()
        self._running: list[_Running] = []
        self._staged: tuple[int, StagedWeights] | None = None
        self._swap: tuple[int, StagedWeights, Future[float]] | None = None
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    async def generate(self, request: EngineRequest) -> AsyncIterator[SampledToken]:
        generator = None
        if request.seed is not None:
            generator = torch.Generator().manual_seed(request.seed)
        running = _Running(request, asyncio.get_running_loop(), asyncio.Queue(), generator)
        with self._wake:
            if len(self._waiting) >= self._max_waiting:
                raise EngineBusy(f"{len(self._waiting)} requests wait, limit {self._max_waiting}")
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

    def stage(self, policy_version: int, folder: Path) -> str:
        try:
            staged = StagedWeights(folder, self._model)
        except InvalidWeights as error:
            raise SwapRefused(str(error)) from error
        self._staged = (policy_version, staged)
        return staged.digest

    def swap(self, policy_version: int) -> SwapResult:
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
        digest = runtime_digest(self._model, self._dtypes)
        self._digest = digest
        return SwapResult(policy_version, pause_ms, digest)

    def stats(self) -> EngineStats:
        return EngineStats(
            self._policy_version, self._digest, len(self._running), len(self._waiting)
        )

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

    def _release(self, running: _Running) -> None:
        self._running.remove(running)
        self._free_slots.append(running.slot)

    def _admit(self) -> list[_Running]:
        admitted: list[_Running] = []
        with self._wake:
            while self._waiting and self._free_slots:
                running = self._waiting.popleft()
                if running.aborted:
                    continue
                running.slot = self._free_slots.pop()
                self._running.append(running)
                admitted.append(running)
        return admitted

    def _prefill(self, admitted: list[_Running]) -> None:
        prompts = [running.request.prompt_token_ids for running in admitted]
        width = max(map(len, prompts))
        ids_BQ = torch.zeros(len(prompts), width, dtype=torch.long)
        for i, prompt in enumerate(prompts):  # right padding: later tokens overwrite its cache
            ids_BQ[i, : len(prompt)] = torch.tensor(prompt)
        positions_BQ = torch.arange(width).expand(len(prompts), width)
        last_B = torch.tensor([len(prompt) - 1 for prompt in prompts])
        self._step(admitted, ids_BQ, positions_BQ, last_B)

    def _decode(self, decoding: list[_Running]) -> None:
        ids_BQ = torch.tensor([[running.last_token] for running in decoding])
        positions_BQ = torch.tensor(
            [[len(r.request.prompt_token_ids) + r.num_sampled - 1] for r in decoding]
        )
        self._step(decoding, ids_BQ, positions_BQ, torch.zeros(len(decoding), dtype=torch.long))

    def _step(
        self,
        rows: list[_Running],
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
                )  # fmt: skip
            )

    def _finish(self, running: _Running) -> Literal["stop", "length"] | None:
        if running.last_token in self._stop_ids:
            return "stop"
        return "length" if running.num_sampled >= running.request.max_tokens else None

    def _deliver(self) -> None:
        """Hand tokens to their event loops: one wake-up a loop and turn."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Running, list[SampledToken]]]] = {}
        for running in list(self._running):
            if running.outbox:
                by_loop.setdefault(running.loop, []).append((running, running.outbox))
                if running.outbox[-1].finish:
                    self._release(running)
                running.outbox = []
        for loop, deliveries in by_loop.items():
            loop.call_soon_threadsafe(_put_all, deliveries)

    def _fail_running(self, error: Exception) -> None:
        for running in list(self._running):
            self._release(running)
            running.loop.call_soon_threadsafe(running.tokens.put_nowait, error)


def _put_all(deliveries: list[tuple[_Running, list[SampledToken]]]) -> None:
    for running, tokens in deliveries:
        for token in tokens:
            running.tokens.put_nowait(token)
