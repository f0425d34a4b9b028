"""`tendril forget` on real files: nothing of the user is left, and nothing of others is touched."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from serving.keys import node_secret
from signals.privacy.forget import Certificate, forget
from signals.privacy.owner import Owner
from signals.state import State
from tendril.cli.forget import run_forget
from tendril.consent import person_of
from tendril.ids import tenant_user_key
from tendril.lake import open_lake
from tendril.lake.rows import from_arrow
from tendril.log import SqliteLog, open_log
from tendril.records import Consent, Episode, Feedback, Trace
from tendril.settings import InvalidSettings, Settings
from tests.builders import make_trace
from tests.signals.privacy.workspace import (
    ADA,
    BOB,
    NUM_TRACES,
    files_with,
    make_workspace,
    records_of,
)

OWNER = Owner("acme", ADA)


def forgotten(settings: Settings) -> Certificate:
    log = open_log(settings)
    try:
        return forget(settings, log, OWNER)
    finally:
        log.close()


Kind = type[Trace] | type[Feedback] | type[Episode]
TOPICS = ("traces", "feedback", "episodes", "dead_letters")


def on_log(settings: Settings, *topics: str) -> list[bytes]:
    log = open_log(settings)
    reader = log.reader("test", topics)
    values = [record.value for record in reader.poll(1_000_000, 0.0)]
    reader.close()
    log.close()
    return values


def in_lake(settings: Settings, record_type: Kind) -> list[Any]:
    found: list[Any] = from_arrow(record_type, open_lake(settings).read(record_type.TOPIC))
    return found


class Done(NamedTuple):
    """A workspace after a deletion, and what was there before."""

    settings: Settings
    before: list[bytes]
    rows: dict[Kind, list[Any]]
    held: list[str]
    certificate: Certificate


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_workspace(tmp_path)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    settings = make_workspace(tmp_path_factory.mktemp("done"))
    before = on_log(settings, *TOPICS)
    kinds: tuple[Kind, ...] = (Trace, Feedback, Episode)
    rows = {kind: in_lake(settings, kind) for kind in kinds}
    held = files_with(settings.workspace, ADA.encode())
    return Done(settings, before, rows, held, forgotten(settings))


def test_the_key_is_in_no_file_afterwards(done: Done) -> None:
    assert len(done.held) >= 4  # or the test would show nothing
    assert done.certificate.is_complete, done.certificate
    for needle in (ADA.encode(), b"a-trace-", b"a-episode-"):
        assert files_with(done.settings.workspace, needle) == []


def test_counts_say_what_was_there_and_that_it_is_gone(done: Done) -> None:
    places = {place.where: place for place in done.certificate.places}
    for table in ("traces", "feedback", "episodes"):
        assert (places[f"lake {table}"].before, places[f"lake {table}"].after) == (NUM_TRACES, 0)
    assert (places["log.db"].before, places["log.db"].after) == (3 * NUM_TRACES + 1, 0)
    assert (places["serving/spool.db"].before, places["serving/spool.db"].after) == (3, 0)
    assert places["signals/0.db"].before == 2 + 4 + 1 + 1 + 1  # traces, events, stray, closed, out
    assert places["learner/checkpoint.pt"].before == 1


def test_other_users_keep_every_byte(done: Done) -> None:
    before = [value for value in done.before if ADA.encode() not in value]
    assert on_log(done.settings, *TOPICS) == before
    assert len(before) == len(records_of(BOB))
    for kind, rows in done.rows.items():
        expected = [row for row in rows if getattr(row, "user_key", None) == BOB]
        assert in_lake(done.settings, kind) == expected
        assert len(expected) == NUM_TRACES
    checkpoint = torch.load(done.settings.path(Path("learner/checkpoint.pt")), weights_only=True)
    assert checkpoint["seen_ids"] == ["b-episode-1"]


def test_the_joiners_books_balance_and_what_waited_has_opted_out(done: Done) -> None:
    state = State(done.settings.path(Path("signals/0.db")))  # refuses books that do not balance
    totals = state.counts.totals()
    state.close()
    assert totals["traces"]["opted_out"] == 1  # the settled one had joined before
    assert totals["feedback"]["opted_out"] == 2 + 1 + 1  # of both traces, and the stray one
    assert totals["traces"]["pending"] == 1
    assert totals["feedback"]["pending"] == 3


def test_the_record_of_the_deletion_names_the_person_by_digest_only(done: Done) -> None:
    value = on_log(done.settings, Consent.TOPIC)[0]
    assert ADA.encode() not in value
    assert done.certificate.person.encode() in value


def test_a_second_run_finds_nothing_and_still_names_the_versions(done: Done) -> None:
    again = forgotten(done.settings)
    assert all(place.before == place.after == 0 for place in again.places)
    assert done.certificate.policy_versions == again.policy_versions == (2, 3)
    assert len(on_log(done.settings, Consent.TOPIC)) == 1


def test_the_command_hashes_the_id_as_serving_does(
    done: Done, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENDRIL_WORKSPACE", str(done.settings.workspace))
    with pytest.raises(InvalidSettings, match=r"node\.secret: expected the secret"):
        run_forget(None, "acme", "ada lovelace", None, as_json=True)
    secret = node_secret(done.settings.workspace)
    run_forget(None, "acme", "ada lovelace", None, as_json=True)
    printed = capsys.readouterr().out
    key = tenant_user_key("acme", "ada lovelace", secret)
    assert json.loads(printed)["person"] == person_of("acme", key)
    assert "lovelace" not in printed
    assert key not in printed


@pytest.mark.parametrize("as_json", [False, True])
def test_a_user_that_nothing_is_known_of_is_no_success_however_often(
    settings: Settings,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    as_json: bool,
) -> None:
    monkeypatch.setenv("TENDRIL_WORKSPACE", str(settings.workspace))
    for _ in range(2):
        assert run_forget(None, "acne", None, "0" * 32, as_json=as_json) == 1
        printed = capsys.readouterr()
        assert "nothing is known of this user under tenant acne" in printed.err
        assert "nothing is left" not in printed.out
        if as_json:
            assert json.loads(printed.out)["is_known"] is False


def test_who_was_forgotten_is_known_to_have_been(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENDRIL_WORKSPACE", str(settings.workspace))
    assert [run_forget(None, "acme", None, ADA, as_json=True) for _ in range(2)] == [0, 0]


def test_a_user_of_another_tenant_with_the_same_key_is_found_by_the_key_alone(
    settings: Settings,
) -> None:
    """Keys hash the tenant in, so that two tenants never share one."""
    assert tenant_user_key("acme", "ada", b"s") != tenant_user_key("evil", "ada", b"s")


KILLED = """
import os, signal, sys
from pathlib import Path
from signals.privacy.forget import forget
from signals.privacy.owner import Owner
from tendril.log import open_log
from tendril.settings import Settings
settings = Settings(workspace=Path(sys.argv[1]))
def step(name):
    if name == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)
forget(settings, open_log(settings), Owner("acme", sys.argv[2]), step=step)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    ["record", "plan", "lake traces", "lake episodes", "learner", "log.db", "serving/spool.db",
     "signals/0.db", "verify", "certificate"],
)  # fmt: skip
def test_a_run_that_was_killed_is_finished_by_the_next(settings: Settings, step: str) -> None:
    child = subprocess.run(
        [sys.executable, "-c", KILLED, str(settings.workspace), ADA, step],
        check=False, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL
    certificate = forgotten(settings)
    assert certificate.is_complete
    assert certificate.policy_versions == (2, 3)
    for needle in (ADA.encode(), b"a-trace-", b"a-episode-"):
        assert files_with(settings.workspace, needle) == []
    State(settings.path(Path("signals/0.db"))).close()


def test_processes_that_read_and_write_meanwhile_lose_nothing(settings: Settings) -> None:
    stop, appended, read = threading.Event(), [0], [0]
    path = settings.path(settings.log.path)

    def write() -> None:
        log = SqliteLog(path)
        while not stop.wait(0.02):
            log.append([("s", make_trace(trace_id=f"new-{appended[0]}", user_key=BOB))])
            appended[0] += 1
        log.close()

    def follow() -> None:
        log = SqliteLog(path)
        reader = log.reader("signals", ["traces"])
        while not stop.is_set():
            read[0] += len(reader.poll(100, 0.01))
        reader.close()
        log.close()

    threads = [threading.Thread(target=work) for work in (write, follow)]
    for thread in threads:
        thread.start()
    try:
        certificate = forgotten(settings)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert certificate.is_complete, certificate
    assert appended[0] > 0
    assert read[0] > 0
    values = on_log(settings, "traces")
    assert sum(b"new-" in value for value in values) == appended[0]
    assert len(values) == appended[0] + NUM_TRACES
