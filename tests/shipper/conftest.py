"""The bench that the tests of the node agent share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shipper.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.engine.stop()
