"""Small checkpoint folders and a store with versions in it, without a model."""

from pathlib import Path

import numpy as np

from shipper.shipping import Shipper
from shipper.store import WeightStore
from tendril.log import EventLog
from tendril.records import EvalReport, PolicyManifest, Release
from tendril.weights import TensorBytes, encode_weights, weights_digest, write_weights
from tests.builders import make_manifest, make_release

TOKENIZER_DIGEST = "af1349b9f5f9a1a6a0404dea36dcc949"
"""Of an empty tokenizer.json."""


def make_tensors(version: int) -> dict[str, TensorBytes]:
    """Version v differs from v - 1 in the lowest bit of seven elements."""
    bits = np.random.default_rng(0).integers(0x3C00, 0x3F00, 4096, dtype=np.uint16)
    bits[: 7 * (version - 1)] ^= 1
    return {
        "a": TensorBytes("BF16", (64, 60), bits[:3840].tobytes()),
        "b": TensorBytes("BF16", (256,), bits[3840:].tobytes()),
    }


def write_checkpoint(folder: Path, version: int = 1) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(b"{}")
    (folder / "tokenizer.json").write_bytes(b"")
    write_weights(folder / "model.safetensors", make_tensors(version))
    return folder


def publish(store: WeightStore, log: EventLog, version: int, parent: int) -> PolicyManifest:
    """What the learner does, and the gate after it: a candidate that passed against its parent."""
    tensors = make_tensors(version)
    manifest = make_manifest(
        policy_version=version,
        parent=parent,
        snapshot=(
            store.blobs.put("model.safetensors", encode_weights(tensors)),
            store.blobs.put("config.json", b"{}"),
            store.blobs.put("tokenizer.json", b""),
        ),
        weights_digest=weights_digest(tensors),
        tokenizer_digest=TOKENIZER_DIGEST,
    )
    log.append([(str(version), manifest)])
    return manifest


def gate_passed(version: int, against: int) -> Release:
    evidence = EvalReport(policy_version=version, against_version=against, checks=())
    return make_release(policy_version=version, state="gate_passed", evidence=evidence)


def ship_versions(store: WeightStore, log: EventLog, checkpoint: Path, up_to: int) -> Shipper:
    """Bootstrap version 1 and ship every version up to `up_to`."""
    shipper = Shipper(store, log)
    shipper.bootstrap(checkpoint)
    for version in range(2, up_to + 1):
        publish(store, log, version, parent=version - 1)
        log.append([("releases", gate_passed(version, version - 1))])
        shipper.ship(version, actor="test", reason="passed")
    return shipper
