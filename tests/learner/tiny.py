"""A tiny checkpoint, and episodes sampled from it, for tests of the learner and of scoring."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from kernels.scoring import Scorable, completion_logprobs
from learner.batches import Eligibility
from learner.state import LearnerState, new_state
from tendril.records import Episode, PolicySpan
from tendril.settings import LearnerSettings
from tests.builders import make_episode, make_segment

VOCAB_SIZE = 32
SILENCE = 31


def tiny_model(seed: int = 0) -> PreTrainedModel:
    """One layer with bfloat16-valued float32 weights, as published ones are."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
        initializer_range=0.3, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model: PreTrainedModel = LlamaForCausalLM(config)
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return model


def write_tiny_checkpoint(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_model(seed)
    model.bfloat16()
    model.save_pretrained(folder)
    words = {f"w{i}": i for i in range(SILENCE)} | {"<|silence|>": SILENCE}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 64}))
    return folder


def tokenizer_digest(folder: Path) -> str:
    return blake3((folder / "tokenizer.json").read_bytes()).hexdigest()[:32]


def tiny_state(folder: Path, settings: LearnerSettings | None = None) -> LearnerState:
    return new_state(write_tiny_checkpoint(folder), settings or LearnerSettings(), 1)


def eligibility(**overrides: Any) -> Eligibility:
    fields: dict[str, Any] = {
        "policy_version": 1, "max_policy_lag": 3, "tokenizer_digest": "tok",
        "vocab_size": VOCAB_SIZE, "max_context_tokens": 64, "silence_token_id": SILENCE,
    }  # fmt: skip
    return Eligibility(**(fields | overrides))


@torch.no_grad()
def served_episodes(
    model: PreTrainedModel, completions: Sequence[tuple[int, ...]], rewards: Sequence[float],
    **overrides: Any,
) -> list[Episode]:  # fmt: skip
    """Episodes e0, e1, ... whose behavior_logprobs are those of `model` as version 1."""
    prompts = [(1 + i % 7, 2 + i % 11, 3) for i in range(len(completions))]
    episodes = []
    for i, (prompt, completion, reward) in enumerate(
        zip(prompts, completions, rewards, strict=True)
    ):
        logprobs = completion_logprobs(model, [Scorable(prompt, completion, 1.0)], SILENCE)
        segment = make_segment(
            trace_id=f"t{i}",
            prompt_token_ids=prompt,
            completion_token_ids=completion,
            loss_mask=(True,) * len(completion),
            behavior_logprobs=tuple(logprobs.tolist()),
            policy_spans=(PolicySpan(policy_version=1, num_tokens=len(completion)),),
            credit=(reward,) * len(completion),
        )
        fields = {"episode_id": f"e{i}", "segments": (segment,), "reward": reward}
        episodes.append(make_episode(**(fields | overrides)))
    return episodes
