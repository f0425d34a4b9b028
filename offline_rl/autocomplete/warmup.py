"""Teaches the base model a token for silence: `python -m offline_rl.autocomplete.warmup IN OUT`.

Every next-token target is replaced by silence with one small probability, whatever the context.
So the model learns that the token exists and how often to use it, and nothing about when:
that is left to learning from users.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from offline_rl.autocomplete.corpus import base_files
from offline_rl.autocomplete.pretrain import SILENCE, WINDOW_TOKENS, encode_files

SILENCE_SHARE = 0.2
NUM_STEPS = 150
BATCH_WINDOWS = 16


def warm_up(source: Path, out: Path, *, seed: int) -> None:
    """Fine-tune on the base text for `NUM_STEPS` and save the folder that serving starts from."""
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(source, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    silence_id = tokenizer.token_to_id(SILENCE)
    if silence_id is None:
        raise ValueError(f"{source}: expected a tokenizer with {SILENCE}, got one without")
    tokens = encode_files(tokenizer, [file for file in base_files() if file.split == "train"])
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.95), weight_decay=0)
    for step in range(NUM_STEPS):
        optimizer.param_groups[0]["lr"] = 5e-4 * min(1.0, (step + 1) / 20, (NUM_STEPS - step) / 75)
        starts = torch.randint(len(tokens) - WINDOW_TOKENS, (BATCH_WINDOWS,), generator=generator)
        windows_BL = torch.stack([tokens[s : s + WINDOW_TOKENS] for s in starts])
        silent_BL = torch.rand(windows_BL.shape, generator=generator) < SILENCE_SHARE
        labels_BL = torch.where(silent_BL, silence_id, windows_BL)
        loss = model(input_ids=windows_BL, labels=labels_BL).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 25 == 24:
            print(f"step {step + 1} loss {float(loss.detach()):.3f}", flush=True)
    save(model, source, out, seed)


def save(model: LlamaForCausalLM, source: Path, out: Path, seed: int) -> None:
    """bfloat16 weights, with the tokenizer and the records of the pre-training run."""
    model.to(dtype=torch.bfloat16)  # type: ignore[call-arg]
    model.save_pretrained(out)
    for name in ("tokenizer.json", "held_out_files.json", "training_curve.csv"):
        shutil.copyfile(source / name, out / name)
    facts = {"warmup_steps": NUM_STEPS, "warmup_seed": seed, "silence_share": SILENCE_SHARE}
    (out / "warmup.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    warm_up(arguments.source, arguments.out, seed=arguments.seed)
