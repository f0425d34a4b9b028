"""A checkpoint that is real and tiny, engines on it, and what plain transformers says of it."""

import asyncio
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from serving.engine import Engine, EngineRequest, SampledToken
from serving.torch_engine.engine import TorchEngine

END, SILENCE = 0, 1
VOCABULARY = 300
CONTEXT = 128


def write_tokenizer(path: Path) -> None:
    """Byte-level BPE over all bytes, and a few merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|silence|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    words = "def return self import for while import value values name names the a in"
    tokenizer.train_from_iterator([words] * 4, trainer)
    tokenizer.save(str(path))


def write_model(folder: Path, *, seed: int, hidden_size: int = 32) -> Path:
    """A random Llama of two layers, head size 32, tied embeddings, bfloat16."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=8 * CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=END,
    )
    torch.manual_seed(seed)
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    write_tokenizer(folder / "tokenizer.json")
    return folder


def make_engine(folder: Path, **overrides: Any) -> TorchEngine:
    """Version 1 of `folder` with eight slots."""
    settings: dict[str, Any] = {
        "max_running": 8,
        "max_waiting": 64,
        "lent_slots": 4,
        "max_context_tokens": CONTEXT,
        "silence_token_id": SILENCE,
        "num_threads": 1,
        "seed": 0,
    }
    return TorchEngine(folder, 1, **(settings | overrides))


def make_request(*prompt: int, **overrides: Any) -> EngineRequest:
    """Twelve sampled tokens at temperature 1, the first not silence."""
    fields: dict[str, Any] = {
        "prompt_token_ids": prompt or (65, 66, 67),
        "max_tokens": 12,
        "temperature": 1.0,
        "forbid_silence": True,
    }
    return EngineRequest(**(fields | overrides))


async def sample(engine: Engine, request: EngineRequest) -> list[SampledToken]:
    return [token async for token in engine.generate(request)]


def sample_now(engine: Engine, request: EngineRequest) -> list[SampledToken]:
    return asyncio.run(sample(engine, request))


def token_ids(tokens: list[SampledToken]) -> list[int]:
    return [token.token_id for token in tokens]


class Reference:
    """The same checkpoint under plain transformers, one request at a time, no cache."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def logprobs(self, request: EngineRequest, completion: list[int]) -> list[float]:
        """Of `completion`, after temperature, silence renormalised away after the first token."""
        ids = torch.tensor([[*request.prompt_token_ids, *completion]])
        first = len(request.prompt_token_ids) - 1
        logits_TV = self.model(ids).logits[0, first:-1] / request.temperature
        logits_TV[1:, SILENCE] = -torch.inf
        logprobs_TV = logits_TV.log_softmax(-1)
        return [float(logprobs_TV[t, token]) for t, token in enumerate(completion)]

    @torch.inference_mode()
    def first_logprobs(self, request: EngineRequest) -> list[float]:
        """Of every token as the first one."""
        logits_V = self.model(torch.tensor([request.prompt_token_ids])).logits[0, -1]
        found: list[float] = (logits_V / request.temperature).log_softmax(-1).tolist()
        return found

    @torch.inference_mode()
    def quietest_prompt(self) -> int:
        """The one-token prompt after which silence is most likely."""
        return int(
            self.model(torch.arange(VOCABULARY)[:, None])
            .logits[:, 0]
            .softmax(-1)[:, SILENCE]
            .argmax()
        )

    @torch.inference_mode()
    def greedy(self, request: EngineRequest) -> list[int]:
        ids = torch.tensor([request.prompt_token_ids])
        output = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=request.max_tokens,
            do_sample=False,
            suppress_tokens=[SILENCE],
            pad_token_id=END,
        )
        found: list[int] = output[0, len(request.prompt_token_ids) :].tolist()
        return found
