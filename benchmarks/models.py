"""Checkpoint folders to measure with: a Llama of 135M parameters, and a sparse step away from it.

Its weights are random, as speed does not depend on them. Its tokenizer is the packaged base
model's, padded with words that no text is encoded to: sampled tokens become text at a usual cost.
"""

import json
import random
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tendril.model_folder import TOKENIZER_FILE, WEIGHTS_FILE
from tendril.settings import PACKAGED_CHECKPOINT
from tendril.weights import TensorBytes, read_weights, write_weights

VOCABULARY = 49_152
WORD = re.compile(r"Ġ[a-z]{2,}")
"""In a byte-level vocabulary: a space and a word."""


def write_llama_135m(folder: Path) -> Path:
    """SmolLM2-135M's shape, with a tokenizer of its vocabulary's size."""
    from benchmarks.torch_engine import write_smollm_shape

    write_smollm_shape(folder)
    tokenizer = json.loads((PACKAGED_CHECKPOINT / TOKENIZER_FILE).read_text())
    tokenizer["model"]["vocab"] = padded(tokenizer["model"]["vocab"], VOCABULARY)
    (folder / TOKENIZER_FILE).write_text(json.dumps(tokenizer))
    return folder


def padded(vocabulary: Mapping[str, int], size: int) -> dict[str, int]:
    """`vocabulary` with words up to `size` that no merge leads to."""
    return {**vocabulary, **{f"Ġunused{i}": i for i in range(len(vocabulary), size)}}


def write_neighbour(folder: Path, base: Path, share: float) -> Path:
    """A copy of `base` in which `share` of the bf16 elements lie one step further from zero."""
    shutil.copytree(base, folder)
    rng = np.random.default_rng(0)
    tensors = {
        name: stepped(tensor, share, rng)
        for name, tensor in read_weights(base / WEIGHTS_FILE).items()
    }
    write_weights(folder / WEIGHTS_FILE, tensors)
    return folder


def stepped(tensor: TensorBytes, share: float, rng: np.random.Generator) -> TensorBytes:
    """Only bf16 tensors change."""
    if tensor.dtype != "BF16":
        return tensor
    bits_N = np.frombuffer(tensor.data, "<u2").copy()
    bits_N[rng.random(bits_N.size, np.float32) < share] += 1
    return tensor._replace(data=bits_N.tobytes())


class Prompts:
    """Texts of a known number of tokens that never come twice, so that no prefix is reused."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        vocabulary = json.loads((folder / TOKENIZER_FILE).read_text())["model"]["vocab"]
        self._words = one_token_words(vocabulary)
        self._random = random.Random(seed)

    def take(self, num_prompts: int, num_tokens: int) -> Sequence[str]:
        return [
            "".join(self._random.choice(self._words) for _ in range(num_tokens))
            for _ in range(num_prompts)
        ]


def one_token_words(vocabulary: Mapping[str, int]) -> Sequence[str]:
    """Words, each with the space before it, that are one token wherever they stand."""
    return [token.replace("Ġ", " ") for token in vocabulary if WORD.fullmatch(token)]
