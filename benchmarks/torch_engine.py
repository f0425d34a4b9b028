"""The torch engine against batched `generate` of transformers on the same checkpoint.

Tokens a second, paired: each round runs both on the same new prompts, in turns, and the ratio is
the median of the rounds'. Same threads, dtype float32, temperature 1, number of tokens. Wall time
wants a quiet machine; CPU time bears others' jobs better, and charges us for the event loop too.
With TENDRIL_BENCH_VLLM_PYTHON (an interpreter that has vLLM) its offline `LLM` on such prompts is
reported too, after the others, by wall time.
"""

import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from benchmarks.figures import Figure
from serving.engine import EngineRequest
from serving.torch_engine.engine import TorchEngine
from tendril.settings import PACKAGED_CHECKPOINT

Prompts = Sequence[tuple[int, ...]]
NUM_STREAMS = (1, 8, 32)
NUM_PROMPT_TOKENS = 32
NUM_THREADS = 1
TARGET_STREAMS, TARGET_RATIO = 8, 1.0
WALL, CPU = "tokens/s", "tokens/CPU s"
VLLM_SCRIPT = """
import json, statistics, sys, time
from vllm import LLM, SamplingParams

job = json.load(sys.stdin)
llm = LLM(job["folder"], dtype="float32", enforce_eager=True, max_model_len=512,
          skip_tokenizer_init=True, enable_prefix_caching=False, max_num_seqs=32)
sampling = SamplingParams(
    max_tokens=job["num_tokens"], ignore_eos=True, logprobs=0, detokenize=False
)


def speed(prompts):
    started = time.perf_counter()
    llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
    return len(prompts) * job["num_tokens"] / (time.perf_counter() - started)


speeds = [statistics.median([speed(p) for p in rounds][1:]) for rounds in job["batches"]]
print("SPEEDS", json.dumps(speeds))
"""
VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, range(NUM_THREADS))),
    "OMP_NUM_THREADS": str(NUM_THREADS),
    "VLLM_LOGGING_LEVEL": "ERROR",
}


class Speed(NamedTuple):
    """Tokens a second."""

    wall: float
    cpu: float
    """Of the whole process, our event loop included."""


class Round(NamedTuple):
    """Both on the same prompts, one after the other."""

    ours: Speed
    theirs: Speed


class Setup(NamedTuple):
    """A checkpoint that never ends a reply, and how much to sample from it."""

    name: str
    folder: Path
    vocabulary: int
    num_tokens: int
    num_rounds: int

    def prompts(self, rng: random.Random, num: int) -> Prompts:
        """Random, and so never seen before: no prefix is reused."""
        return [
            tuple(rng.randrange(2, self.vocabulary) for _ in range(NUM_PROMPT_TOKENS))
            for _ in range(num)
        ]


def run() -> list[Figure]:
    """Both checkpoints; three to five minutes, some more with vLLM."""
    torch.set_num_threads(NUM_THREADS)
    with tempfile.TemporaryDirectory() as folder:
        base = _without_end(PACKAGED_CHECKPOINT, Path(folder) / "base")
        large = write_smollm_shape(Path(folder) / "large")
        return [
            *_figures(Setup("base model", base, 4096, num_tokens=64, num_rounds=9)),
            *_figures(Setup("135M Llama", large, 49152, num_tokens=32, num_rounds=5)),
        ]


def _without_end(checkpoint: Path, folder: Path) -> Path:
    """A copy that names no end of text, so that every reply has the same length."""
    shutil.copytree(checkpoint, folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    return folder


def write_smollm_shape(folder: Path) -> Path:
    """A Llama of SmolLM2-135M's shape with random weights: speed does not depend on them."""
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=2048,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def _figures(setup: Setup) -> list[Figure]:
    model: Any = AutoModelForCausalLM.from_pretrained(setup.folder, dtype=torch.float32).eval()
    engine = TorchEngine(
        setup.folder, 1, max_running=max(NUM_STREAMS), max_waiting=max(NUM_STREAMS),
        max_context_tokens=256, silence_token_id=None, num_threads=NUM_THREADS, seed=0,
    )  # fmt: skip

    def ours(prompts: Prompts) -> int:
        return asyncio.run(_engine_tokens(engine, prompts, setup.num_tokens))

    def theirs(prompts: Prompts) -> int:
        return _generate_tokens(model, prompts, setup.num_tokens)

    rng = random.Random(0)
    figures: list[Figure] = []
    for num_streams in NUM_STREAMS:
        rounds = []
        for i in range(setup.num_rounds + 1):
            prompts = setup.prompts(rng, num_streams)
            first, second = (ours, theirs) if i % 2 else (theirs, ours)
            speeds = {work: _speed(work, prompts) for work in (first, second)}
            rounds.append(Round(speeds[ours], speeds[theirs]))
        figures += _pair(f"{setup.name}, {_streams(num_streams)}", num_streams, rounds[1:])
    engine.close()
    walls = [figure.ours for figure in figures if figure.unit == WALL]
    return figures + _vllm_figures(setup, walls)


def _speed(work: Callable[[Prompts], int], prompts: Prompts) -> Speed:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    num_tokens = work(prompts)
    return Speed(
        num_tokens / (time.perf_counter() - wall_s), num_tokens / (time.process_time() - cpu_s)
    )


def _pair(metric: str, num_streams: int, rounds: Sequence[Round]) -> list[Figure]:
    has_target = num_streams == TARGET_STREAMS
    figures = []
    for i, unit in enumerate((WALL, CPU)):
        ratio = statistics.median(r.ours[i] / r.theirs[i] for r in rounds)
        is_judged = has_target and unit == WALL
        theirs = statistics.median(r.theirs[i] for r in rounds)
        figures.append(
            Figure(
                metric=metric, unit=unit, ours=statistics.median(r.ours[i] for r in rounds),
                peer=theirs, peer_name="transformers generate", ratio=ratio,
                target=round(TARGET_RATIO * theirs, 1) if is_judged else None,
                ok=ratio >= TARGET_RATIO if is_judged else None,
            )
        )  # fmt: skip
    return figures


def _streams(num: int) -> str:
    return f"{num} stream{'s' if num > 1 else ''}"


async def _engine_tokens(engine: TorchEngine, prompts: Prompts, num_tokens: int) -> int:
    async def one(prompt: tuple[int, ...]) -> int:
        request = EngineRequest(prompt_token_ids=prompt, max_tokens=num_tokens, temperature=1.0)
        return len([token async for token in engine.generate(request)])

    return sum(await asyncio.gather(*map(one, prompts)))


@torch.inference_mode()
def _generate_tokens(model: Any, prompts: Prompts, num_tokens: int) -> int:
    ids = torch.tensor(prompts)
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=True,
        temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0,
    )  # fmt: skip
    return int(output[:, ids.shape[1] :].numel())


def _vllm_figures(setup: Setup, ours: Sequence[float]) -> list[Figure]:
    """Not interleaved with the others: two engines would not leave each other a core."""
    interpreter = os.environ.get("TENDRIL_BENCH_VLLM_PYTHON")
    if not interpreter:
        return []
    rng = random.Random(1)
    batches = [
        [setup.prompts(rng, num) for _ in range(setup.num_rounds + 1)] for num in NUM_STREAMS
    ]
    job = {"folder": str(setup.folder), "num_tokens": setup.num_tokens, "batches": batches}
    done = subprocess.run(
        [interpreter, "-c", VLLM_SCRIPT], input=json.dumps(job), env=os.environ | VLLM_ENVIRONMENT,
        cwd=setup.folder, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    speeds = json.loads(done.stdout.rpartition("SPEEDS")[2])
    return [
        Figure(
            metric=f"{setup.name}, {_streams(num)}", unit="tokens/s", ours=own, peer=theirs,
            peer_name="vLLM offline", ratio=own / theirs,
        )
        for num, own, theirs in zip(NUM_STREAMS, ours, speeds, strict=True)
    ]  # fmt: skip
