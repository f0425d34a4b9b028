"""Processes that use a lake, run by test_processes.py and test_s3.py: ROLE ROOT OPTIONS ARGUMENTS.

append PARTITION N:    appends batches until offset N, going on from what is committed.
work PARTITION N:      the same, compacting now and then.
churn PARTITION:       the same without an end, with compactions; says each offset committed.
full:                  appends until files may grow no more, and says what it was told.
"""

import json
import random
import resource
import sys

from tendril.lake.lake import Lake
from tendril.lake.offsets import app_id
from tendril.lake.results import LakeUnavailable
from tests.tendril.lake.lake_rows import feedback_rows

MAX_FILE_BYTES = 20_000


def step(lake: Lake, partition: int, num_rows: int) -> int:
    """Append the next batch of a partition; the offset after it."""
    app = app_id("feedback", partition)
    committed = lake.committed("feedback", [app])
    first = committed.get(app, 0)
    rows = feedback_rows(first, first + num_rows, partition=partition)
    lake.append("feedback", rows, {app: first + num_rows}, after=committed)
    return first + num_rows


def append(lake: Lake, partition: int, end: int) -> None:
    while step(lake, partition, 5) < end:
        pass


def work(lake: Lake, partition: int, end: int) -> None:
    while step(lake, partition, 5) < end:
        if random.random() < 0.2:
            lake.compact("feedback")


def churn(lake: Lake, partition: int) -> None:
    while True:
        print(step(lake, partition, random.randint(1, 40)), flush=True)
        if random.random() < 0.1:
            lake.compact("feedback")


def full(lake: Lake) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    try:
        step(lake, 0, 20_000)
    except LakeUnavailable as error:
        print(error, flush=True)


def main(role: str, root: str, options: str, *arguments: str) -> None:
    lake = Lake(root, json.loads(options))
    if role == "append":
        append(lake, int(arguments[0]), int(arguments[1]))
    elif role == "work":
        work(lake, int(arguments[0]), int(arguments[1]))
    elif role == "churn":
        churn(lake, int(arguments[0]))
    else:
        full(lake)


if __name__ == "__main__":
    main(*sys.argv[1:])
