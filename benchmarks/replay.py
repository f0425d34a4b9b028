"""Replay: a log of the past joined again from its beginning, the same bytes whatever the split.

Times are those of the command `tendril replay`, start and comparison included, with one worker and
with two. The peer is DuckDB joining the same records, laid out as Parquet beforehand, without
state or rewards: the floor. REPLAY_EVENTS in the environment (default 1000000) sets how many.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.figures import Figure
from benchmarks.join import fill, floor_of, num_traces_of, settings_of
from benchmarks.joining import join
from signals.recipe import load_recipe
from signals.replay import replay
from signals.workshop import reviewer_of
from tendril.log import SqliteLog
from tendril.records import encode
from tendril.settings import Settings

WINDOW_S = 3_600.0
BATCHES = (1_000, 10_000, 60_000)
MAX_S = 120.0


class Replayed(NamedTuple):
    """One replay by the command."""

    seconds: float
    report: dict[str, Any]


def run() -> list[Figure]:
    """About ten minutes on two cores."""
    num = int(os.environ.get("REPLAY_EVENTS", "1000000"))
    with tempfile.TemporaryDirectory() as name:
        settings = settings_of(Path(name), WINDOW_S)
        fill(settings, num)
        # What the replay is compared with, and what DuckDB reads.
        join(settings, 1, 1, num_traces_of(num))
        floor_s = num / floor_of(settings, num)
        one, two = _command(settings, 1), _command(settings, 2)
        digests = {str(one.report["digest"]), str(two.report["digest"])}
        log = SqliteLog(settings.path(settings.log.path))
        in_batches = {_digest(settings, log, size) for size in BATCHES}
        log.close()
    scale = num / 1_000_000
    return [
        Figure(metric="a million events, 1 worker", unit="s", ours=one.seconds / scale,
               target=MAX_S, ok=one.seconds / scale < MAX_S, peer=floor_s / scale,
               peer_name="one DuckDB query, no rewards", ratio=one.seconds / floor_s),
        Figure(metric="a million events, 2 workers", unit="s", ours=two.seconds / scale,
               target=MAX_S, ok=two.seconds / scale < MAX_S),
        Figure(metric="different outputs of 1 and 2 workers", unit="digests",
               ours=len(digests), target=1, ok=len(digests) == 1),
        Figure(metric="different outputs of 3 batch sizes", unit="digests",
               ours=len(in_batches), target=1, ok=len(in_batches) == 1),
        Figure(metric="rewards that differ from those published", unit="traces",
               ours=one.report["changed"], target=0, ok=one.report["changed"] == 0),
    ]  # fmt: skip


def _command(settings: Settings, workers: int) -> Replayed:
    file = settings.workspace / "tendril.toml"
    file.write_text(_toml(settings))
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "tendril.cli", "--config", str(file), "replay",
         "--workers", str(workers), "--json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return Replayed(time.perf_counter() - started, json.loads(done.stdout))


def _toml(settings: Settings) -> str:
    window_s = settings.signals.feedback_window_s
    return (
        f'workspace = "{settings.workspace}"\n[signals]\nrevise_after_s = []\nlateness_s = 0.0\n'
        f"feedback_window_s = {window_s}\n"
    )


def _digest(settings: Settings, log: SqliteLog, batch_records: int) -> str:
    reviewer = reviewer_of(settings, load_recipe(None))
    digest = blake2b(digest_size=16)
    for episode in replay(log, reviewer, settings, batch_records=batch_records):
        digest.update(encode(episode))
    return digest.hexdigest()
