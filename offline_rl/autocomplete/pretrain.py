"""Pre-trains the autocomplete base model: `python -m offline_rl.autocomplete.pretrain OUT`.

Writes a Hugging Face checkpoint folder (Llama architecture, byte-level BPE tokenizer), the list of
held-out files and the training curve. The same seed, text and library versions give the same model.
"""

import argparse
import csv
import json
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from offline_rl.autocomplete.corpus import SourceFile, base_files
from offline_rl.autocomplete.muon import Muon

END_OF_TEXT, SILENCE = "<|endoftext|>", "<|silence|>"
VOCAB_SIZE = 4096
WINDOW_TOKENS = 256
BATCH_WINDOWS = 24
STDLIB_REPEATS = 2  # the library proper is the better half of the text: read it more often
# A newline keeps its indent; a word or a run of punctuation keeps the space before it.
WORDS = r" ?[A-Za-z_]+| ?[0-9]| ?[^\sA-Za-z_0-9]+|\n+[ \t]*|[ \t]+"


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE over `WORDS`; ids 0 and 1 are end of text and silence."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT, SILENCE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def build_model(seed: int) -> LlamaForCausalLM:
    """1.9 million parameters, head size 32, tied embeddings, float32."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=160,
        intermediate_size=448,
        num_hidden_layers=4,
        num_attention_heads=5,
        num_key_value_heads=5,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def encode_files(tokenizer: Tokenizer, files: list[SourceFile]) -> Tensor:
    """All files behind one another, each closed by end of text; int64 [tokens]."""
    pieces: list[int] = []
    for encoding in tokenizer.encode_batch([file.text for file in files]):
        pieces += encoding.ids
        pieces.append(0)
    return torch.from_numpy(np.asarray(pieces, dtype=np.int64))


def learning_rate_share(step: int, num_steps: int) -> float:
    """Warm-up over 100 steps, constant, then linear to zero over the last 40 %."""
    return min(1.0, (step + 1) / 100, max(0.0, (num_steps - step) / (0.4 * num_steps)))


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, tokens: Tensor, num_windows: int = 48) -> float:
    """Mean next-token loss in nats over evenly spaced windows."""
    starts = torch.linspace(0, len(tokens) - WINDOW_TOKENS - 1, num_windows).long()
    windows = torch.stack([tokens[s : s + WINDOW_TOKENS] for s in starts])
    return float(model(input_ids=windows, labels=windows).loss)


def make_optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings and norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if not any(p is m for m in matrices)]
    return [
        Muon(matrices, lr=0.02),
        torch.optim.AdamW(others, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def pretrain(out: Path, *, num_steps: int, seed: int) -> None:
    """Train, writing the folder every 250 steps so that a running job can be inspected."""
    files = base_files()
    train = [file for file in files if file.split == "train"]
    held_out = [file for file in files if file.split == "held_out"]
    train += [
        file
        for file in train
        if file.name.startswith("stdlib/") and not file.name.startswith("stdlib/test/")
    ] * (STDLIB_REPEATS - 1)
    out.mkdir(parents=True, exist_ok=True)
    (out / "held_out_files.json").write_text(json.dumps([f.name for f in held_out], indent=0))
    tokenizer = train_tokenizer([file.text for file in train])
    tokenizer.save(str(out / "tokenizer.json"))
    tokens = encode_files(tokenizer, train)
    held_out_tokens = encode_files(tokenizer, [f for f in held_out if "/test/" not in f.name])
    print(f"{len(train)} files, {len(tokens):,} tokens; {len(held_out)} held out", flush=True)

    model = build_model(seed)
    optimizers = make_optimizers(model)
    initial_rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    generator = torch.Generator().manual_seed(seed)
    curve: list[tuple[int, int, float, float, float]] = []
    running_loss, started = 9.0, time.monotonic()
    for step in range(num_steps):
        starts = torch.randint(len(tokens) - WINDOW_TOKENS, (BATCH_WINDOWS,), generator=generator)
        windows = torch.stack([tokens[s : s + WINDOW_TOKENS] for s in starts])
        loss = model(input_ids=windows, labels=windows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, rate in zip(optimizers, initial_rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * learning_rate_share(step, num_steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        running_loss += 0.05 * (float(loss.detach()) - running_loss)
        if step % 250 == 249 or step == num_steps - 1:
            seen = (step + 1) * BATCH_WINDOWS * WINDOW_TOKENS
            validation = held_out_loss(model, held_out_tokens)
            minutes = (time.monotonic() - started) / 60
            curve.append((step + 1, seen, running_loss, validation, minutes))
            print(
                f"step {step + 1} loss {running_loss:.3f} held out {validation:.3f} "
                f"{minutes:.1f} min",
                flush=True,
            )
            save(model, out, curve)


def save(
    model: LlamaForCausalLM,
    out: Path,
    curve: list[tuple[int, int, float, float, float]],
) -> None:
    """bfloat16 weights plus the curve so far."""
    weights = LlamaForCausalLM(model.config)
    weights.load_state_dict(model.state_dict())
    weights.to(dtype=torch.bfloat16)  # type: ignore[call-arg]
    weights.save_pretrained(out)
    with (out / "training_curve.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "tokens", "train_loss", "held_out_loss", "minutes"])
        writer.writerows([(s, t, f"{a:.4f}", f"{b:.4f}", f"{m:.1f}") for s, t, a, b, m in curve])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    pretrain(arguments.out, num_steps=arguments.steps, seed=arguments.seed)
