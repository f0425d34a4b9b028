"""Starting when what was served last is damaged: it serves, so that the agent can mend it."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.build import load_engine
from tendril.settings import Settings
from tests.serving.live_server import make_settings
from tests.serving.small_model import write_model, write_tokenizer


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _lose(path: Path) -> None:
    path.unlink()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    base = write_model(tmp_path / "base", seed=1)
    write_tokenizer(base / "tokenizer.json")
    settings = make_settings(tmp_path / "work space ü", base)
    node = settings.path(settings.shipping.node_folder)
    kept = write_model(node / "versions/7", seed=2)
    write_tokenizer(kept / "tokenizer.json")
    (node / "current.json").write_text(json.dumps({"policy_version": 7}))
    return settings


def _started_version(settings: Settings) -> int:
    engine, _ = asyncio.run(load_engine(settings))
    engine.close()
    return engine.stats().policy_version


def test_it_starts_on_what_it_served_last(settings: Settings) -> None:
    assert _started_version(settings) == 7


@pytest.mark.parametrize("damage", [_truncate, _lose])
@pytest.mark.parametrize(
    "name",
    ["current.json", "versions/7/model.safetensors", "versions/7/config.json",
     "versions/7/tokenizer.json"],
)  # fmt: skip
def test_whatever_is_damaged_it_starts_on_the_first_checkpoint(
    settings: Settings, name: str, damage: Callable[[Path], None]
) -> None:
    damage(settings.path(settings.shipping.node_folder) / name)
    assert _started_version(settings) == 1


def test_a_damaged_first_checkpoint_is_an_error(settings: Settings) -> None:
    _lose(settings.serving.checkpoint / "model.safetensors")
    _lose(settings.path(settings.shipping.node_folder) / "current.json")
    with pytest.raises(OSError, match=r"model\.safetensors"):
        asyncio.run(load_engine(settings))
