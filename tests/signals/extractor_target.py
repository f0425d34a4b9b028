"""A signals process that says which partitions it has. Run by test_rebalance.py.

usage: extractor_target SETTINGS, a JSON file of `Settings`. Ends when its standard input does.
"""

import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from signals.joiner import TOPICS
from signals.process import GROUP, join
from signals.workshop import Workshop
from tendril.lake import open_lake
from tendril.log import LogReader, LogRecord, Offsets, TopicPartition, open_log
from tendril.settings import Settings


class LoudReader:
    """Prints what it is assigned, each time that this changes."""

    def __init__(self, inner: LogReader) -> None:
        self._inner = inner
        self._said: list[int] = []

    def assignment(self) -> frozenset[TopicPartition]:
        held = self._inner.assignment()
        numbers = sorted({place.partition for place in held})
        if numbers != self._said:
            print(*numbers, flush=True)
            self._said = numbers
        return held

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        return self._inner.poll(max_records, timeout_s)

    def positions(self) -> Offsets:
        return self._inner.positions()

    def commit(self, offsets: Offsets) -> None:
        self._inner.commit(offsets)

    def committed(self) -> Offsets:
        return self._inner.committed()

    def seek(self, offsets: Offsets) -> None:
        self._inner.seek(offsets)

    def close(self) -> None:
        self._inner.close()


def main(settings: Settings) -> None:
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    log = open_log(settings)
    reader = LoudReader(log.reader(GROUP, TOPICS))
    join(log, reader, Workshop(settings, log, open_lake(settings)), stop, pause_s=0.2)
    reader.close()
    log.close()


if __name__ == "__main__":
    main(Settings.model_validate_json(Path(sys.argv[1]).read_text()))
