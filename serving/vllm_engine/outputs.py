"""From vLLM's outputs to sampled tokens, without the text."""

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.outputs import CompletionOutput

from serving.engine import SampledToken


def sampled_tokens(
    output: CompletionOutput, num_top_logprobs: int = 0, policy_version: int = 0
) -> list[SampledToken]:
    """The tokens of `output` with their log-probs (as asked for with `logprobs` >= 0).

    `policy_version` stands on tokens for which the output itself names none.
    """
    versions = token_versions(output, policy_version)
    tokens = [
        SampledToken(
            token_id,
            entry[token_id].logprob,
            version,
            None,
            top_logprobs=_top(entry, num_top_logprobs),
        )
        for token_id, entry, version in zip(
            output.token_ids, output.logprobs or (), versions, strict=True
        )
    ]
    if tokens and output.finish_reason is not None:
        tokens[-1] = tokens[-1]._replace(
            finish="length" if output.finish_reason == "length" else "stop"
        )
    return tokens


def token_versions(output: CompletionOutput, otherwise: int) -> Sequence[int]:
    """The policy version of each token, from the spans that a final output carries."""
    versions = [otherwise] * len(output.token_ids)
    for span in output.weight_versions or []:
        for position in range(span.start, min(span.end, len(versions))):
            versions[position] = int(span.version)
    return versions


def _top(entry: Mapping[int, Any], count: int) -> tuple[tuple[int, float], ...]:
    best = sorted(entry.items(), key=lambda item: item[1].rank)[:count]
    return tuple((token_id, value.logprob) for token_id, value in best)
