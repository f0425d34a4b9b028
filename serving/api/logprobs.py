"""Log-probs of sampled tokens, in the formats of both routes.

They cover every sampled token, the one that ended the reply included.
"""

from collections.abc import Sequence
from typing import Any

from serving.engine import SampledToken
from serving.recorder import Decision
from serving.text import REPLACEMENT, TextCodec

LOWEST = -9999.0
"""JSON has no infinity; OpenAI writes this for what cannot be sampled."""


def token_name(codec: TextCodec, token_id: int) -> str:
    """Its text; of part of a character its bytes, as OpenAI writes them."""
    text = codec.token_text(token_id)
    if REPLACEMENT not in text:
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in codec.token_bytes(token_id))


def chat_logprobs(tokens: Sequence[SampledToken], codec: TextCodec) -> list[dict[str, Any]]:
    """One entry a token; the bytes of all of them join to the text."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": token_name(codec, token_id),
            "logprob": max(logprob, LOWEST),
            "bytes": list(codec.token_bytes(token_id)),
        }

    return [
        entry(token.token_id, token.logprob)
        | {"top_logprobs": [entry(*top) for top in token.top_logprobs]}
        for token in tokens
    ]


def completion_logprobs(
    decision: Decision, codec: TextCodec, num_top: int, start: int = 0
) -> dict[str, Any]:
    """Of the tokens from the `start`th on, as parallel lists."""
    tokens = decision.tokens[start:]
    tops = [
        {
            token_name(codec, token_id): max(logprob, LOWEST)
            for token_id, logprob in (*token.top_logprobs, (token.token_id, token.logprob))
        }
        for token in tokens
    ]
    return {
        "tokens": [token_name(codec, token.token_id) for token in tokens],
        "token_logprobs": [max(token.logprob, LOWEST) for token in tokens],
        "top_logprobs": tops if num_top else None,
        "text_offset": decision.text.offsets()[start:],
    }
