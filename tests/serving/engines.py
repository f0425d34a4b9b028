"""Every engine under contract, and what the contract tests ask of all of them.

Another engine joins by another entry in `ENGINES`.
"""

import time
from collections.abc import Callable

from serving.engine import Engine, EngineRequest, SampledToken
from tests.serving.small_model import (
    Reference,
    make_engine,
    token_ids,
)
from tests.serving.vllm_engine.shared import Borrowed

ENGINES: dict[str, Callable[..., Engine]] = {"torch": make_engine, "vllm": Borrowed}
Start = Callable[..., Engine]
TOLERANCE = 1e-4


def gap(reference: Reference, request: EngineRequest, tokens: list[SampledToken]) -> float:
    expected = reference.logprobs(request, token_ids(tokens))
    return max(abs(t.logprob - e) for t, e in zip(tokens, expected, strict=True))


def wait_idle(engine: Engine, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while engine.stats().num_running or engine.stats().num_waiting:
        assert time.monotonic() < deadline, f"still busy: {engine.stats()}"
        time.sleep(0.005)
