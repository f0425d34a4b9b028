"""What the tests of the learner on a log share: settings, episodes it can use, the log."""

from pathlib import Path
from typing import Any

from tendril.log import EventLog
from tendril.records import (
    Episode,
    Record,
    decode,
)
from tendril.settings import Settings, load_settings
from tests.learner.tiny import (
    served_episodes,
    tiny_model,
    tokenizer_digest,
    write_tiny_checkpoint,
)


def make_settings(folder: Path, **learner: Any) -> Settings:
    """No publishing, batches of 4, unless a test says otherwise."""
    write_tiny_checkpoint(folder / "checkpoint")
    values = {"batch_episodes": 4, "publish_every_s": 1e9, "checkpoint_every_steps": 2} | learner
    lines = [f'workspace = "{folder / "workspace"}"', "[learner]"]
    lines += [f"{name} = {value}" for name, value in values.items()]
    lines += ["[serving]", f'checkpoint = "{folder / "checkpoint"}"']
    (folder / "tendril.toml").write_text("\n".join(lines))
    return load_settings(folder / "tendril.toml")


def learnable_episodes(settings: Settings, num: int, **overrides: Any) -> list[Episode]:
    digest = tokenizer_digest(settings.serving.checkpoint)
    completions = [(4 + i % 5, 9 + i % 3) for i in range(num)]
    rewards = [1.0 if i % 3 else -0.5 for i in range(num)]
    fields = {"tokenizer_digest": digest, "recipe_digest": "recipe-1"} | overrides
    return served_episodes(tiny_model(), completions, rewards, **fields)


def append(log: EventLog, *records: Record) -> None:
    log.append([("s1", record) for record in records])


def read_all(log: EventLog, record_type: type[Any]) -> list[Any]:
    reader = log.reader("test", (record_type.TOPIC,))
    rows = reader.poll(1_000, 0.0)
    reader.close()
    return [decode(record_type, row.value) for row in rows]
