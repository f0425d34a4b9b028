"""Silence in vLLM: a choice for the first token only, as in the torch engine and the learner.

The processor runs in the worker. It masks the silence token after the first position, and for the
first where exploration forbids it, and writes what silence's log-prob was into a table that the
serving process shares: vLLM's own log-probs are those after masks.
"""

import math
import os
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from serving.engine import EngineBusy, SampledToken

TOKEN_VARIABLE, TABLE_VARIABLE = "TENDRIL_SILENCE_TOKEN_ID", "TENDRIL_SILENCE_TABLE"
"""How the serving process tells its workers, who inherit its environment."""
ARGUMENT = "tendril_silence"


class SilenceTable:
    """One float a request, silence's first log-prob, in memory that processes share."""

    def __init__(self, path: Path, token_id: int, num_rows: int | None = None) -> None:
        """Made anew with that many rows, else the one that is there."""
        self.token_id = token_id
        self._values: NDArray[np.float64] = (
            np.memmap(path, np.float64, "r+")
            if num_rows is None
            else np.memmap(path, np.float64, "w+", shape=(num_rows,))
        )
        # First in, first out: a request that was aborted may write once more to its row.
        self._free = deque(range(len(self._values)))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, forbid: bool) -> "SilenceSlot":
        """A row for one request. Raises `EngineBusy` with more requests than rows."""
        if not self._free:
            raise EngineBusy(f"more than {len(self._values)} requests at once")
        row = self._free.popleft()
        self._values[row] = math.nan
        return SilenceSlot(self, row, forbid)

    def read(self, row: int) -> float:
        return float(self._values[row])

    def write(self, row: int, value: float) -> None:
        self._values[row] = value

    def free(self, row: int) -> None:
        self._free.append(row)


class SilenceSlot:
    """What one request tells the processor, and learns from it."""

    def __init__(self, table: SilenceTable, row: int, forbid: bool) -> None:
        self._table, self._row, self._forbid = table, row, forbid

    @property
    def arguments(self) -> dict[str, Any]:
        """Goes into the request's `extra_args`."""
        return {ARGUMENT: {"row": self._row, "forbid": self._forbid}}

    def corrected(self, tokens: list[SampledToken]) -> list[SampledToken]:
        """The first token's log-probs under the policy alone, silence's beside them.

        vLLM reports log-probs after masks: where silence was forbidden, those of the rest.
        """
        silence = self._table.read(self._row)
        if not tokens or math.isnan(silence):
            return tokens
        rest = math.log1p(-min(math.exp(silence), 1 - 1e-12)) if self._forbid else 0.0
        first = tokens[0]._replace(
            logprob=tokens[0].logprob + rest,
            silence_logprob=silence,
            top_logprobs=tuple((t, value + rest) for t, value in tokens[0].top_logprobs),
        )
        return [first, *tokens[1:]]

    def close(self) -> None:
        self._table.free(self._row)


class SilenceProcessor(LogitsProcessor):
    """See the module. Requests that carry `tendril_silence` are its business, others are not."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._token = int(os.environ[TOKEN_VARIABLE])
        self._table = SilenceTable(Path(os.environ[TABLE_VARIABLE]), self._token)
        self._requests: dict[int, tuple[dict[str, Any], float, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._requests, batch_update, _request_of)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        later: list[int] = []
        for row, (about, temperature, output) in self._requests.items():
            if output:
                later.append(row)
                continue
            silence = (logits[row] / temperature).log_softmax(-1)[self._token]
            self._table.write(about["row"], float(silence))
            if about["forbid"]:
                later.append(row)
        if later:
            logits[later, self._token] = -torch.inf
        return logits


def _request_of(
    params: SamplingParams, _: list[int] | None, output_token_ids: list[int]
) -> tuple[dict[str, Any], float, list[int]] | None:
    about = (params.extra_args or {}).get(ARGUMENT)
    if about is None:
        return None
    return about, params.temperature if params.temperature > 1e-5 else 1.0, output_token_ids
