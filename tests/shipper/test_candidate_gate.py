"""The gate on real checkpoints: a tiny Llama that logs its own decisions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shipper.candidate_gate import CandidateGate
from shipper.shipping import Shipper
from shipper.store import WeightStore
from tendril.log import MemoryLog
from tendril.records import Episode, PolicySpan
from tendril.settings import Settings, ShippingSettings
from tests.builders import make_episode, make_manifest, make_segment

VOCABULARY = {"<|endoftext|>": 0, "<|silence|>": 1, **{f"w{i}": i + 2 for i in range(30)}}


def write_llama(folder: Path) -> Any:
    """A bfloat16 Llama of two layers, and the model as serving and gate load it."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM

    from kernels.scoring import load_policy

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    Tokenizer(WordLevel(VOCABULARY, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return load_policy(folder)


def log_decisions(model: Any, tokenizer_digest: str, num_episodes: int) -> list[Episode]:
    """Random two-token replies with the log-probs that the model gives them."""
    from kernels.scoring import Scorable, compare

    rng = np.random.default_rng(0)
    episodes = []
    for i in range(num_episodes):
        prompt = tuple(rng.integers(2, 32, 4).tolist())
        item = Scorable(prompt, tuple(rng.integers(2, 32, 2).tolist()), 1.0)
        [scored] = compare(model, model, [item], silence_token_id=1)
        segment = make_segment(
            prompt_token_ids=prompt,
            completion_token_ids=item.completion,
            behavior_logprobs=tuple(scored.live_logprobs_T.tolist()),
            policy_spans=(PolicySpan(policy_version=1, num_tokens=2),),
        )
        episodes.append(
            make_episode(
                segments=(segment,),
                session_id=f"s{i // 4}",
                reward=float(rng.choice([0.75, -0.25])),
                held_out=True,
                tokenizer_digest=tokenizer_digest,
            )
        )
    return episodes


@pytest.mark.slow
def test_the_live_weights_pass_and_other_numerics_do_not(tmp_path: Path) -> None:
    settings = Settings(workspace=tmp_path, shipping=ShippingSettings(gate_min_episodes=20))
    store = WeightStore(settings.path(settings.shipping.store))
    model = write_llama(tmp_path / "base")
    live = Shipper(store, MemoryLog()).bootstrap(tmp_path / "base")
    episodes = log_decisions(model, live.tokenizer_digest, num_episodes=24)
    candidate = make_manifest(
        policy_version=2, snapshot=live.snapshot, weights_digest=live.weights_digest
    )
    gate = CandidateGate(store, settings)
    report = gate.evaluate(candidate, 1, episodes)
    assert report.verdict == "pass"
    values = {check.name: check.value for check in report.checks}
    assert values == pytest.approx(
        {"numerics": 0, "reward": 0, "kl": 0, "silence": 0, "accepted_bytes": 0}, abs=1e-5
    )
    folders = (tmp_path / "shipper/candidates").iterdir()
    assert sorted(folder.name for folder in folders) == ["1", "2"]

    foreign = [make_episode(segments=e.segments, held_out=True) for e in episodes]
    assert gate.evaluate(candidate, 1, foreign).verdict == "inconclusive"
