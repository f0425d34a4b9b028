"""What the replies of both routes have in common."""

import time
from collections.abc import Sequence
from typing import Any

from serving.recorder import Decision


class Envelope:
    """The fields around the choices, equal in every chunk of one reply."""

    def __init__(self, kind: str, prefix: str, decisions: Sequence[Decision]) -> None:
        self._kind, self._decisions = kind, decisions
        self._id = f"{prefix}-{decisions[0].request.request_id}"
        self._created = int(time.time())

    def around(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        first = self._decisions[0]
        return {
            "id": self._id,
            "object": self._kind,
            "created": self._created,
            "model": first.model,
            "system_fingerprint": f"policy-{first.request.policy_version}",
            "choices": choices,
            **more,
        }


def usage(decisions: Sequence[Decision], num_prompts: int = 1) -> dict[str, int]:
    """Tokens read and sampled; a prompt counts once, whatever the number of its choices."""
    num_each = len(decisions) // num_prompts
    num_prompt = sum(len(decision.prompt_token_ids) for decision in decisions[::num_each])
    num_completion = sum(len(decision.tokens) for decision in decisions)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
    }
