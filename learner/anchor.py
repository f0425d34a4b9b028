"""The last shipped policy: the learner's KL reference, and where it returns after a rollback."""

from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedModel

from kernels.scoring import load_policy
from tendril.blobs import BlobStore
from tendril.log import EventLog, drain
from tendril.model_folder import WEIGHTS_FILE
from tendril.records import (
    TYPE_BY_TOPIC,
    InvalidRecord,
    PolicyManifest,
    Record,
    Release,
    decode,
)
from tendril.weights import decode_weights


class Anchor:
    """Follows `policies` and `releases`; keeps the live version's weights as a frozen model.

    It reads beside all groups, always from the beginning.
    """

    def __init__(self, log: EventLog, blobs: BlobStore, checkpoint: Path, first: int) -> None:
        self._reader = log.reader(None, (PolicyManifest.TOPIC, Release.TOPIC))
        self._blobs = blobs
        self._manifests: dict[int, PolicyManifest] = {}
        self.model: PreTrainedModel = load_policy(checkpoint)
        self.version = self._live = first
        self.newest = first
        """The newest version that was ever published."""
        self.num_rollbacks = 0
        self.withdrawn: int | None = None
        """The version that the newest rollback took out of service."""

    def follow(self) -> bool:
        """Read what is new; True where the live version changed and `model` with it."""
        for record in self._new_records():
            self._fold(record)
        if self._live == self.version or self._live not in self._manifests:
            return False
        load_snapshot(self.model, self._manifests[self._live], self._blobs)
        self.version = self._live
        return True

    @property
    def is_behind(self) -> bool:
        """Whether `model` is another version than the one in service."""
        return self.version != self._live

    def _fold(self, record: Record) -> None:
        if isinstance(record, PolicyManifest):
            self._manifests[record.policy_version] = record
            self.newest = max(self.newest, record.policy_version)
        elif isinstance(record, Release) and record.state == "promoted":
            self._live = record.policy_version
        elif isinstance(record, Release) and record.state == "rolled_back":
            self._live = record.target_version or self._live
            self.num_rollbacks += 1
            self.withdrawn = record.policy_version

    def _new_records(self) -> Iterator[Record]:
        for row in drain(self._reader):
            try:
                yield decode(TYPE_BY_TOPIC[row.topic], row.value)
            except InvalidRecord:
                continue  # the shipper, whose topics these are, reports it

    def close(self) -> None:
        self._reader.close()


@torch.no_grad()
def load_snapshot(model: PreTrainedModel, manifest: PolicyManifest, blobs: BlobStore) -> None:
    """Overwrite `model` with a published version; raises `CorruptObject` for a damaged one."""
    file = next(f for f in manifest.snapshot if f.name == WEIGHTS_FILE)
    tensors = decode_weights(blobs.get(file), f"version {manifest.policy_version}")
    for name, parameter in model.named_parameters():
        tensor = tensors[name]
        raw = torch.frombuffer(bytearray(tensor.data), dtype=torch.bfloat16)
        parameter.copy_(raw.reshape(parameter.shape))
