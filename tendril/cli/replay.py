"""`tendril replay`: rewards by another recipe, compared with what was published, then sent."""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from signals.comparison import Change, Comparison, compare
from signals.recipe import load_recipe
from signals.replay import as_revisions, in_order, published, recapped, replay
from signals.workshop import reviewer_of
from tendril.log import open_log
from tendril.records import Episode, decode, encode
from tendril.settings import load_settings

MAX_SENT = 500


def run_replay(
    file: Path | None,
    recipe: Path | None,
    since: datetime | None,
    *,
    workers: int,
    write: bool,
    as_json: bool,
) -> None:
    """Replay, print the comparison and, with `write`, append what changed as revisions."""
    started = time.monotonic()
    moment = since.timestamp() if since else 0.0
    shares = [(file, recipe, moment, (i, workers)) for i in range(workers)]
    if workers == 1:
        encoded = [_replay_share(*shares[0])]
    else:
        with ProcessPoolExecutor(workers) as pool:
            encoded = list(pool.map(_replay_share, *zip(*shares, strict=True)))
    log = open_log(load_settings(file))
    try:
        before = published(log)
        alike = recapped((decode(Episode, value) for value in chain(*encoded)), before)
        replayed = in_order(alike)
        revisions = as_revisions(replayed, before)
        _print(compare(before, replayed), replayed, len(revisions), started, as_json=as_json)
        for start in range(0, len(revisions) if write else 0, MAX_SENT):
            log.append([(e.session_id, e) for e in revisions[start : start + MAX_SENT]])
    finally:
        log.close()
    if write and not as_json:
        print(f"{len(revisions)} revisions appended")


def _replay_share(
    file: Path | None, recipe: Path | None, since: float, share: tuple[int, int]
) -> list[bytes]:
    settings = load_settings(file)
    reviewer = reviewer_of(settings, load_recipe(recipe or settings.signals.recipe))
    log = open_log(settings)
    try:
        return [encode(e) for e in replay(log, reviewer, settings, since=since, share=share)]
    finally:
        log.close()


def _print(
    found: Comparison, replayed: list[Episode], num_changed: int, started: float, *, as_json: bool
) -> None:
    digest = blake2b(digest_size=16)
    for episode in replayed:
        digest.update(encode(episode))
    if as_json:
        document = msgspec.to_builtins(found) | {
            "changed": num_changed, "digest": digest.hexdigest(),
        }  # fmt: skip
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
        return
    table = Table("", "traces", "signs changed", "mean before", "mean after", box=None)
    table.add_row("reward", *_cells(found.rewards))
    for name, change in found.by_component.items():
        table.add_row(f"component {name}", *_cells(change))
    for name, change in found.by_surface.items():
        table.add_row(f"surface {name}", *_cells(change))
    Console(markup=False).print(table)
    print(
        f"{found.num_replayed} traces replayed in {time.monotonic() - started:.1f} s, "
        f"{found.num_compared} of them published before, {num_changed} judged otherwise now; "
        f"{found.became_known} became known, {found.became_unknown} unknown\n"
        f"digest of the replay {digest.hexdigest()}"
    )


def _cells(change: Change) -> tuple[str, ...]:
    means = (
        "-" if mean is None else f"{mean:+.4f}" for mean in (change.mean_before, change.mean_after)
    )
    return (str(change.num), str(change.signs_changed), *means)
