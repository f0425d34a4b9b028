"""PolicyManifest: published weights, as objects in the store."""

import msgspec

from tendril.records.base import Record


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable object in the weight store."""

    name: str
    """What it is below a checkpoint folder, for example `model.safetensors`."""
    key: str
    """Where it is: `objects/<blake3>`."""
    blake3: str
    num_bytes: int


class PolicyManifest(Record, frozen=True, kw_only=True):
    """Published weights."""

    TOPIC = "policies"
    policy_version: int
    parent: int | None
    """The version these weights were trained from; None for the first."""
    base_version: int | None = None
    """What a delta applies to; None where only a snapshot exists."""
    snapshot: tuple[StoredFile, ...]
    delta: StoredFile | None = None
    weights_digest: str
    """BLAKE3 over the tensors' names, dtypes, shapes and bytes, see `tendril.weights`."""
    tokenizer_digest: str
    published_at: float
    trained_offsets: dict[str, int] = {}
    """Next log offset by `topic/partition`: everything before it was read."""
    newest_feedback_at: float | None = None
    """Ingest time of the newest feedback trained on."""
    num_steps: int = 0
    num_episodes: int = 0
    recipe_digest: str = ""
    code_revision: str = ""
    hyperparameters: dict[str, float] = {}
    metrics: dict[str, float] = {}
