"""From float32 masters to published bfloat16 weights and their manifest."""

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedModel

from learner.state import LearnerState, named_offsets
from tendril import __version__
from tendril.blobs import BlobStore
from tendril.model_folder import WEIGHTS_FILE, version_files
from tendril.records import PolicyManifest
from tendril.settings import LearnerSettings
from tendril.weights import TensorBytes, encode_weights, weights_digest


def published_tensors(model: PreTrainedModel) -> dict[str, TensorBytes]:
    """The weights as serving loads them: bfloat16, tied tensors once."""
    return {
        name: TensorBytes(
            "BF16",
            tuple(parameter.shape),
            parameter.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes(),
        )
        for name, parameter in model.named_parameters()
    }


def publish(
    state: LearnerState,
    blobs: BlobStore,
    checkpoint: Path,
    tokenizer_digest: str,
    settings: LearnerSettings,
    now: float,
    metrics: Mapping[str, float],
) -> PolicyManifest:
    """Store the weights of `state.policy_version` as a snapshot and describe them.

    Running it again after a crash stores the same bytes again.
    """
    tensors = published_tensors(state.model)
    snapshot = [blobs.put(WEIGHTS_FILE, encode_weights(tensors))]
    snapshot += [
        blobs.put_file(name, checkpoint / name)
        for name in version_files(checkpoint)
        if name != WEIGHTS_FILE
    ]
    return PolicyManifest(
        policy_version=state.policy_version,
        parent=state.parent,
        snapshot=tuple(snapshot),
        weights_digest=weights_digest(tensors),
        tokenizer_digest=tokenizer_digest,
        published_at=now,
        trained_offsets=named_offsets(state.offsets),
        newest_feedback_at=state.newest_feedback_at,
        num_steps=state.num_steps,
        num_episodes=state.counts.get("trained", 0),
        recipe_digest=state.recipe_digest,
        code_revision=__version__,
        hyperparameters={
            "learning_rate": settings.learning_rate,
            "kl_coefficient": settings.kl_coefficient,
            "batch_episodes": settings.batch_episodes,
        },
        metrics=dict(metrics),
    )
