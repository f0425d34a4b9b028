"""The production engine: vLLM's asynchronous engine, with weights that change in place.

Sampling runs on one event loop, the serving process's. `stream` is the one way in: it isolates
prefix caches by policy version, holds new requests while weights change, and hands every output,
the last one of an aborted request included, to whoever records.
"""

import asyncio
import contextlib
from argparse import Namespace
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vllm import SamplingParams, TokensPrompt
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import RequestOutputCollector

from serving.engine import (
    EngineRequest,
    EngineStats,
    SampledToken,
    SwapResult,
    check_queue,
    check_request,
)
from serving.vllm_engine.outputs import sampled_tokens
from serving.vllm_engine.silence import SilenceTable
from serving.vllm_engine.weights import LiveWeights
from tendril.ids import new_id
from tendril.records import Lane

PRIORITIES: Mapping[Lane, int] = {"online": 0, "offline": 1}
"""Lower goes first, and is what vLLM sets others back for; their tokens are kept."""


class Limits(NamedTuple):
    """Requests at once, and how many may wait in each lane."""

    max_running: int
    lent_slots: int
    max_waiting: int

    def slots(self, lane: Lane) -> int:
        return self.max_running if lane == "online" else self.lent_slots


@dataclass(slots=True, eq=False)
class _Run:
    """One request inside the engine."""

    on_output: Callable[[RequestOutput], None]
    on_stale: Callable[[int], None]
    collector: RequestOutputCollector | None = None
    """None until vLLM has taken it."""
    heard: bool = False
    """Its caller has seen outputs: it cannot begin again."""
    restart: bool = False
    """Its prompt is to be computed again, under the weights that came meanwhile."""


class VllmEngine:
    """See `Engine`, which this implements. Make it, and call `start`, on the loop that serves."""

    def __init__(
        self,
        llm: AsyncLLM,
        weights: LiveWeights,
        limits: Limits,
        args: Namespace,
        silence: SilenceTable | None = None,
    ) -> None:
        self.llm, self.weights, self.silence = llm, weights, silence
        self.args = args
        """What vLLM was started with: its server wants it as well."""
        self._limits = limits
        self._lent = asyncio.Semaphore(limits.lent_slots)
        self._lending = asyncio.Lock()
        self._num_inside: dict[Lane, int] = {"online": 0, "offline": 0}
        self._runs: set[_Run] = set()

    @property
    def silence_ids(self) -> list[int]:
        """Tokens that end a reply beside the model's own end of text."""
        return [self.silence.token_id] if self.silence else []

    async def start(self) -> None:
        """Learn where the weights lie, and pay for what the first request would wait for."""
        await self.weights.start()
        params = SamplingParams(max_tokens=2, logprobs=1)
        async for _ in self.stream(TokensPrompt(prompt_token_ids=[0]), params, "warm-up"):
            pass

    async def stream(
        self,
        prompt: Any,
        params: SamplingParams,
        request_id: str,
        *,
        lane: Lane = "online",
        on_output: Callable[[RequestOutput], None] = lambda _: None,
        on_stale: Callable[[int], None] = lambda _: None,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as vLLM makes them; `on_output` sees each first, also what an abort left.

        `prompt` is a rendered prompt or `TokensPrompt`; `options` go to `AsyncLLM.add_request`.
        `on_stale` hears of a choice whose prompt stays computed by weights older than its tokens.
        Raises `EngineBusy`, or `ValueError` for more choices than slots are lent.
        """
        async with self._place(lane, params.n):
            while True:
                await self.weights.is_open.wait()
                run = _Run(on_output, on_stale)
                adding = {**options, "priority": PRIORITIES[lane]}
                async with contextlib.aclosing(
                    self._outputs(run, prompt, params, request_id, adding)
                ) as outputs:
                    async for output in outputs:
                        yield output
                if not run.restart:
                    return

    @contextlib.asynccontextmanager
    async def _place(self, lane: Lane, count: int) -> AsyncIterator[None]:
        """Counts choices; offline ones wait for lent slots, online ones queue in vLLM."""
        self.check_room(lane)
        if lane == "offline" and count > self._limits.lent_slots:
            raise ValueError(f"n: expected at most {self._limits.lent_slots} offline, got {count}")
        self._num_inside[lane] += count
        try:
            async with self._lend(count if lane == "offline" else 0):
                yield
        finally:
            self._num_inside[lane] -= count

    @contextlib.asynccontextmanager
    async def _lend(self, count: int) -> AsyncIterator[None]:
        with contextlib.ExitStack() as taken:
            if count:
                async with self._lending:  # or two requests could wait for each other's slots
                    for _ in range(count):
                        await self._lent.acquire()
                        taken.callback(self._lent.release)
            yield

    async def _outputs(
        self,
        run: _Run,
        prompt: Any,
        params: SamplingParams,
        request_id: str,
        options: Mapping[str, Any],
    ) -> AsyncGenerator[RequestOutput, None]:
        """What comes out, until the end, or until `run` is to be started again."""
        self._runs.add(run)  # before its salt is made: weights may change while it is added
        try:
            collector = run.collector = await self._add(prompt, params, request_id, options)
            finished = False
            while not finished and not run.restart:
                output = collector.get_nowait() or await collector.get()
                if run.restart:
                    break
                run.heard = True
                finished = output.finished
                run.on_output(output)
                yield output
            if run.restart:
                await self.llm.abort(collector.request_id, internal=True)
        except BaseException:
            if run.collector is not None:
                await self._abort(run, run.collector)
            raise
        finally:
            self._runs.discard(run)
            if run.collector is not None:
                run.collector.close()

    async def _add(
        self, prompt: Any, params: SamplingParams, request_id: str, options: Mapping[str, Any]
    ) -> RequestOutputCollector:
        """Hand a request to vLLM; none of it stays there where that fails or is cancelled."""
        own_id = f"{request_id}-{new_id()}"  # clients choose theirs, and may repeat them
        try:
            return await self.llm.add_request(own_id, self._salted(prompt), params, **options)
        except BaseException:
            await self.llm.abort(own_id)
            raise

    async def _abort(self, run: _Run, collector: RequestOutputCollector) -> None:
        """End it inside vLLM and hand on what was sampled and not yet heard."""
        if isinstance(collector.output, Exception):  # it would keep the last output out
            collector.output = None
        await self.llm.abort(collector.request_id, internal=True)
        last, collector.output = collector.output, None
        if isinstance(last, RequestOutput) and not run.restart:
            run.on_output(last)

    def _salted(self, prompt: Any) -> Any:
        """Blocks that other weights computed are never reused for this prompt."""
        salt = f"{prompt.get('cache_salt') or ''}/weights-{self.weights.generation}"
        return {**prompt, "cache_salt": salt}

    async def generate(self, request: EngineRequest) -> AsyncGenerator[SampledToken, None]:
        """See `Engine.generate`."""
        config = self.llm.model_config
        check_request(request, config.max_model_len, config.get_vocab_size())
        slot = self.silence.take(request.forbid_silence) if self.silence else None
        params = SamplingParams(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            seed=request.seed,
            stop_token_ids=[*request.stop_token_ids, *self.silence_ids],
            logprobs=request.num_top_logprobs,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args=slot.arguments if slot else None,
        )
        prompt = TokensPrompt(prompt_token_ids=list(request.prompt_token_ids))
        outputs = self.stream(prompt, params, new_id(), lane=request.lane)
        is_first = True
        try:
            async for output in outputs:
                tokens = sampled_tokens(
                    output.outputs[0], self.weights.policy_version, request.num_top_logprobs
                )
                if is_first and slot:
                    tokens = slot.corrected(tokens)
                is_first = False
                for token in tokens:
                    yield token
        finally:
            await outputs.aclose()
            if slot:
                slot.close()

    def check_room(self, lane: Lane) -> None:
        """See `Engine.check_room`."""
        limits = self._limits
        waiting = self._num_inside[lane] - limits.slots(lane)
        check_queue(lane, waiting, limits.max_waiting, limits.lent_slots)

    def stage(self, policy_version: int, folder: Path) -> str:
        """See `Engine.stage`."""
        return self.weights.stage(policy_version, folder)

    def swap(self, policy_version: int) -> SwapResult:
        """See `Engine.swap`."""
        return self.weights.swap(policy_version, self._restart_unstarted)

    async def _restart_unstarted(self) -> None:
        """While paused: what has not sampled yet is computed from the start under new weights.

        Its blocks carry the old weights' salt, so a stale prefix could still be found for it.
        """
        states = list(self.llm.output_processor.request_states.values())
        started = {id(state.queue) for state in states if not state.is_prefilling}
        again = [r for r in self._runs if not r.heard and id(r.collector) not in started]
        for run in again:  # all of them first: an output may still arrive during the aborts
            run.restart = True
        for run in again:
            if run.collector is not None:
                await self.llm.abort(run.collector.request_id, internal=True)
        begun = {id(run.collector): run for run in self._runs if not run.restart}
        for state in states:  # a choice that waits while its siblings are sampled already
            if state.is_prefilling and id(state.queue) in begun:
                begun[id(state.queue)].on_stale(state.request_index)

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        running = {
            lane: min(inside, self._limits.slots(lane)) for lane, inside in self._num_inside.items()
        }
        num_running = sum(running.values())
        waiting = sum(self._num_inside.values()) - num_running
        return EngineStats(self.weights.policy_version, self.weights.digest, num_running, waiting)

    def check(self) -> None:
        """See `Engine.check`."""
        if self.llm.errored:
            raise self.llm.dead_error
        if self.weights.lost is not None:
            raise self.weights.lost

    def close(self) -> None:
        self.llm.shutdown()
