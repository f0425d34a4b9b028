"""The anchor is the live version, whatever came before this process."""

from pathlib import Path

import pytest
import torch

from learner.anchor import Anchor
from learner.publish import publish
from tendril.blobs import BlobStore, CorruptObject
from tendril.log import LogRecord, MemoryLog
from tendril.settings import LearnerSettings
from tests.builders import make_release
from tests.learner.tiny import tiny_model, tiny_state, write_tiny_checkpoint


def _publish(log: MemoryLog, folder: Path, version: int) -> BlobStore:
    state = tiny_state(folder / f"v{version}")
    state.model.load_state_dict(tiny_model(seed=version).state_dict())
    state.policy_version = version
    blobs = BlobStore(folder / "store")
    manifest = publish(state, blobs, folder / f"v{version}", "t", LearnerSettings(), 0.0, {})
    log.append([("policy", manifest)])
    return blobs


def _anchor(log: MemoryLog, folder: Path) -> Anchor:
    return Anchor(log, BlobStore(folder / "store"), write_tiny_checkpoint(folder / "base"), 1)


def _is(anchor: Anchor, version: int) -> bool:
    weights = tiny_model(seed=version).state_dict()
    return anchor.version == version and all(
        torch.equal(tensor, weights[name]) for name, tensor in anchor.model.state_dict().items()
    )


def test_it_follows_promotions_and_rollbacks_but_not_candidates(tmp_path: Path) -> None:
    log = MemoryLog()
    for version in (2, 3):
        _publish(log, tmp_path, version)
    anchor = _anchor(log, tmp_path)
    assert not anchor.follow()
    assert (anchor.version, anchor.newest) == (1, 3)
    log.append([("r", make_release(policy_version=2)), ("r", make_release(policy_version=3))])
    assert anchor.follow()
    assert _is(anchor, 3)
    assert not anchor.follow()
    back = make_release(policy_version=3, state="rolled_back", target_version=2)
    log.append([("r", back)])
    assert anchor.follow()
    assert _is(anchor, 2)
    assert (anchor.num_rollbacks, anchor.withdrawn) == (1, 3)
    anchor.close()


def test_a_new_one_knows_the_live_version_at_once_beside_one_that_never_closed(
    tmp_path: Path,
) -> None:
    log = MemoryLog()
    _publish(log, tmp_path, 2)
    log.append([("r", make_release(policy_version=2))])
    for anchor in (_anchor(log, tmp_path), _anchor(log, tmp_path)):
        assert anchor.follow()
        assert _is(anchor, 2)
    assert not any(log._committed.values())


def test_a_promotion_before_its_manifest_waits_for_it(tmp_path: Path) -> None:
    log = MemoryLog()
    log.append([("r", make_release(policy_version=2))])
    anchor = _anchor(log, tmp_path)
    assert not anchor.follow()
    _publish(log, tmp_path, 2)
    assert anchor.follow()
    assert _is(anchor, 2)


def test_unreadable_releases_are_left_to_the_shipper(tmp_path: Path) -> None:
    log = MemoryLog()
    log._records["releases"].append(LogRecord("releases", 0, 0, "r", b"\xc1", 0.0))
    anchor = _anchor(log, tmp_path)
    assert not anchor.follow()
    assert anchor.version == 1


def test_a_damaged_snapshot_is_refused(tmp_path: Path) -> None:
    log = MemoryLog()
    blobs = _publish(log, tmp_path, 2)
    for path in (blobs.root / "objects").iterdir():
        path.write_bytes(path.read_bytes()[::-1])
    log.append([("r", make_release(policy_version=2))])
    anchor = _anchor(log, tmp_path)
    with pytest.raises(CorruptObject):
        anchor.follow()
    assert anchor.version == 1
