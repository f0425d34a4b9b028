"""Processes that use an event log, run by test_sqlite_log.py: log_children ROLE LOG ARGUMENTS.

append KEY N: appends one record a call, saying each number after the append returned.
hold GROUP:   takes the lease of the feedback topic, says so, and holds it until killed.
unable:       appends without a right to write (root becomes nobody).
full:         appends until files may grow no more, and says how many appends returned.
"""

import os
import resource
import sys
import time
from pathlib import Path

from tendril.log import LogUnavailable, SqliteLog
from tests.builders import make_feedback


def append(log: SqliteLog, key: str, num_records: int) -> None:
    for n in range(num_records):
        log.append([(key, make_feedback(client_seq=n))])
        print(n, flush=True)


def hold(log: SqliteLog, group: str) -> None:
    reader = log.reader(group, ("feedback",))
    print(len(reader.poll(100, 0.0)), flush=True)
    time.sleep(60)


def full(path: Path) -> None:
    log, returned = SqliteLog(path), 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (800_000, 800_000))
    try:
        while True:
            log.append([("k", make_feedback(trace_id="x" * 10_000, client_seq=returned))])
            returned += 1
    except LogUnavailable as error:
        print(returned, error, flush=True)


def unable(path: Path) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)
    SqliteLog(path).append([("k", make_feedback())])


def main(role: str, path: Path, *arguments: str) -> None:
    if role == "append":
        append(SqliteLog(path), arguments[0], int(arguments[1]))
    elif role == "hold":
        hold(SqliteLog(path), arguments[0])
    elif role == "full":
        full(path)
    else:
        unable(path)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
