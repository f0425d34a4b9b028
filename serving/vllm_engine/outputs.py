"""From vLLM's outputs to sampled tokens, without the text."""

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.outputs import CompletionOutput

from serving.engine import SampledToken


def sampled_tokens(
    output: CompletionOutput, policy_version: int, num_top_logprobs: int = 0
) -> list[SampledToken]:
    """The tokens of `output` with their log-probs (as asked for with `logprobs` >= 0).

    `policy_version` is the engine's now; `versioned` knows better once the output is final.
    """
    tokens = [
        SampledToken(
            token_id,
            entry[token_id].logprob,
            policy_version,
            None,
            top_logprobs=_top(entry, num_top_logprobs),
        )
        for token_id, entry in zip(output.token_ids, output.logprobs or (), strict=True)
    ]
    if tokens and output.finish_reason is not None:
        tokens[-1] = tokens[-1]._replace(
            finish="length" if output.finish_reason == "length" else "stop"
        )
    return tokens


def versioned(tokens: Sequence[SampledToken], last: CompletionOutput) -> list[SampledToken]:
    """All tokens of a choice with the versions that its final output names for them."""
    named = list(tokens)
    for span in last.weight_versions or []:
        for i in range(span.start, min(span.end, len(named))):
            named[i] = named[i]._replace(policy_version=int(span.version))
    return named


def _top(entry: Mapping[int, Any], count: int) -> tuple[tuple[int, float], ...]:
    best = sorted(entry.items(), key=lambda item: item[1].rank)[:count]
    return tuple((token_id, value.logprob) for token_id, value in best)
