"""Forgets one user: everything this workspace holds of them, with counts before and after.

Order: a record on the log first, so that running processes and replays leave the user out; then a
plan on disk, so that a killed run is taken up again; then each store; at the end the certificate.
Running it again is safe at any moment and finds nothing.
"""

import io
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from signals.privacy.erasure import count_rows, erase_rows, sqlite_files
from signals.privacy.open_work import drop_open_work, is_state
from signals.privacy.owner import Matches, Owner, Plan, matcher, read_plan, write_plan
from signals.privacy.survey import count_on_log, is_recorded, survey
from tendril.files import FolderInUse, sole_holder, write_whole
from tendril.log import EventLog
from tendril.records import Consent
from tendril.settings import Settings

FOLDER = Path("forgotten")
LAKE_TABLES = ("traces", "feedback", "episodes", "quarantine")
READ_BYTES = 1 << 22


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One store, with how many rows of the user it held and holds."""

    where: str
    before: int
    after: int
    note: str = ""


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What a deletion did. It names the person by digest only."""

    person: str
    at: float
    places: tuple[Place, ...]
    policy_versions: tuple[int, ...]
    """Trained on rows of theirs: deleting rows does not make weights unlearn them."""
    notes: tuple[str, ...]
    is_known: bool = True
    """Whether this run, or one before it, found anything of theirs."""

    @property
    def is_complete(self) -> bool:
        return all(place.after == 0 for place in self.places)


def forget(
    settings: Settings,
    log: EventLog,
    owner: Owner,
    *,
    now: Callable[[], float] = time.time,
    step: Callable[[str], None] = lambda _: None,
) -> Certificate:
    """Delete what is known of `owner`. `step` hears the name of each step before it is taken.

    Raises `LogUnavailable` or `LakeUnavailable`: then nothing is lost, run it again.
    """
    step("record")
    if not is_recorded(log, owner.person):
        log.append([(owner.person, Consent(person=owner.person, deleted=True, at=now()))])
    step("plan")
    plan_path = settings.path(FOLDER / f"{owner.person}.plan.json")
    earlier = _certified(settings, owner)
    plan = read_plan(plan_path).joined(survey(log, owner))
    write_plan(plan_path, plan)
    matches = matcher(owner.user_key, plan)
    places = [*_lake(settings, owner, step), _checkpoint(settings, plan, step)]
    places += [_database(path, settings, matches, step) for path in _databases(settings)]
    if settings.log.kind != "sqlite":
        places += _on_kafka(log, owner)
    step("verify")
    places.append(_files(settings, owner.user_key))
    certificate = Certificate(
        person=owner.person,
        at=now(),
        places=tuple(places),
        policy_versions=tuple(sorted(plan.policy_versions | frozenset(earlier or ()))),
        notes=_notes(settings),
        is_known=earlier is not None or plan != Plan() or any(place.before for place in places),
    )
    step("certificate")
    if certificate.is_known:  # or a name mistyped twice would be known the second time
        document = msgspec.json.format(msgspec.json.encode(certificate))
        write_whole(settings.path(FOLDER / f"{owner.person}.json"), document)
    if certificate.is_complete:
        plan_path.unlink(missing_ok=True)
    return certificate


def _databases(settings: Settings) -> list[Path]:
    """Log, spools, joiner state: whatever is SQLite in the workspace, and a log elsewhere."""
    found = sqlite_files(settings.workspace.absolute())
    log_path = settings.path(settings.log.path)
    if settings.log.kind == "sqlite" and log_path.exists() and log_path not in found:
        found.append(log_path)
    return found


def _database(
    path: Path, settings: Settings, matches: Matches, step: Callable[[str], None]
) -> Place:
    name = _shown(path, settings)
    step(name)
    before = sum(count_rows(path, matches).values())
    if is_state(path):
        drop_open_work(path, matches)
    erase_rows(path, matches)
    return Place(where=name, before=before, after=sum(count_rows(path, matches).values()))


def _lake(settings: Settings, owner: Owner, step: Callable[[str], None]) -> Iterable[Place]:
    from tendril.lake import open_lake

    lake = open_lake(settings)
    for table in LAKE_TABLES:
        step(f"lake {table}")
        done = lake.delete(table, [owner.user_key])
        note = ""
        if done.num_unreferenced:
            note = f"{done.num_unreferenced} files of killed writers wait for vacuum"
        yield Place(
            where=f"lake {table}",
            before=done.num_rows_before,
            after=done.num_rows_after + done.num_unreferenced,
            note=note,
        )


def _checkpoint(settings: Settings, plan: Plan, step: Callable[[str], None]) -> Place:
    """Ids of episodes that the learner remembers; weights stay, and are named."""
    step("learner")
    path = settings.path(Path("learner/checkpoint.pt"))
    where = _shown(path, settings)
    if not path.exists() or not plan.episode_ids:
        return Place(where=where, before=0, after=0)
    try:
        with sole_holder(path.parent / "lock"):
            saved, before = _seen(path, plan)
            if before:
                saved["seen_ids"] = [i for i in saved["seen_ids"] if i not in plan.episode_ids]
                _save(path, saved)
            return Place(where=where, before=before, after=0)
    except FolderInUse:
        _, before = _seen(path, plan)
        note = "the learner runs: stop it and run this again, or wait for 20,000 more episodes"
        return Place(where=where, before=before, after=before, note=note)


def _seen(path: Path, plan: Plan) -> tuple[dict[str, Any], int]:
    import torch

    saved: dict[str, Any] = torch.load(path, weights_only=True)
    return saved, sum(1 for i in saved["seen_ids"] if i in plan.episode_ids)


def _save(path: Path, saved: Mapping[str, Any]) -> None:
    import torch

    buffer = io.BytesIO()
    torch.save(dict(saved), buffer)
    write_whole(path, buffer.getvalue())


def _on_kafka(log: EventLog, owner: Owner) -> list[Place]:
    """Kafka deletes from the front of a partition only: these records leave by retention."""
    counts = count_on_log(log, owner)
    note = "left out of every replay; Kafka deletes them by retention, seven days at most"
    return [
        Place(where=f"kafka {topic}", before=n, after=n, note=note)
        for topic, n in sorted(counts.items())
    ]


def _files(settings: Settings, user_key: str) -> Place:
    """Files of the workspace that still hold the key in clear, of whatever kind."""
    root = settings.workspace.absolute()
    holding = [path for path in root.rglob("*") if path.is_file() and _holds(path, user_key)]
    note = ", ".join(_shown(path, settings) for path in holding[:5])
    return Place(where="files in clear", before=len(holding), after=len(holding), note=note)


def _holds(path: Path, user_key: str) -> bool:
    needle, rest = user_key.encode(), b""
    try:
        with path.open("rb") as file:
            while block := file.read(READ_BYTES):
                if needle in rest + block:
                    return True
                rest = block[-len(needle) :]
    except FileNotFoundError:
        return False  # a process tidied up meanwhile
    return False


def _certified(settings: Settings, owner: Owner) -> Sequence[int] | None:
    """Versions that an earlier run named: the rows that told are gone. None: no run ended."""
    try:
        document = settings.path(FOLDER / f"{owner.person}.json").read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(document, type=Certificate).policy_versions


def _notes(settings: Settings) -> tuple[str, ...]:
    notes = [
        "Nodes on other machines: run this there with --user-key for their spools.",
        "Backups, file-system snapshots and copies of exports are out of its reach.",
    ]
    if "://" in settings.lake.root:
        notes.append("An object store with versioning keeps old objects until its own rules end.")
    return tuple(notes)


def _shown(path: Path, settings: Settings) -> str:
    root = settings.workspace.absolute()
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
