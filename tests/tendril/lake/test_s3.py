"""The lake on an S3-compatible store: the same settings, the same promises."""

import json
import subprocess
import sys
import urllib.request

import pytest

from tendril.lake import open_lake
from tendril.lake.offsets import app_id
from tendril.lake.query import query
from tendril.lake.results import LakeUnavailable, OffsetsMoved
from tendril.settings import LakeSettings, Settings
from tests.tendril.lake.lake_rows import APP, feedback_rows, offsets_in, user

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def endpoint():
    module = "tests.tendril.lake.s3_server"
    command = (sys.executable, "-m", module, "0")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().split()[1])
        yield f"http://127.0.0.1:{port}"
        server.kill()


@pytest.fixture
def options(endpoint, request):
    bucket = f"lake-{abs(hash(request.node.name)):x}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")).close()
    return bucket, {
        "aws_endpoint_url": endpoint,
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test-secret",
    }


@pytest.fixture
def settings(options):
    bucket, storage_options = options
    root = f"s3://{bucket}/below/a/prefix"
    return Settings(lake=LakeSettings(root=root, storage_options=storage_options))


def test_rows_are_appended_once_read_asked_for_and_deleted(settings):
    lake = open_lake(settings)
    assert lake.append("feedback", feedback_rows(0, 6), {APP: 6})
    assert not lake.append("feedback", feedback_rows(0, 6), {APP: 6})
    lake.append("feedback", feedback_rows(6, 9), {APP: 9})
    assert lake.compact("feedback") == (6, 3)
    assert len(lake.vacuum("feedback", keep_s=0)) == 6
    (answer,) = query(open_lake(settings), "select count(*) from feedback").rows
    assert answer == (9,)
    done = lake.delete("feedback", [user(1)])
    assert (done.num_rows_before, done.num_rows_after) == (3, 0)
    assert offsets_in(open_lake(settings)) == [0, 2, 3, 5, 6, 8]


def test_a_rival_is_refused_on_the_store_too(settings):
    lake = open_lake(settings)
    open_lake(settings).append("feedback", feedback_rows(0, 3), {APP: 3})
    with pytest.raises(OffsetsMoved):
        lake.append("feedback", feedback_rows(0, 5), {APP: 5}, after={})


def test_two_processes_append_at_once_and_every_row_is_there_once(settings):
    module = "tests.tendril.lake.lake_children"
    root, given = settings.lake.root, json.dumps(settings.lake.storage_options)
    writers = [
        subprocess.Popen([sys.executable, "-m", module, "append", root, given, str(n), "40"])
        for n in range(2)
    ]
    assert [writer.wait(timeout=90) for writer in writers] == [0, 0]
    lake, apps = open_lake(settings), [app_id("feedback", n) for n in range(2)]
    assert lake.committed("feedback", apps) == dict.fromkeys(apps, 40)
    assert offsets_in(lake) == sorted(2 * list(range(40)))


def test_a_store_that_cannot_be_reached_is_said_without_its_secret(settings):
    gone = settings.lake.storage_options | {"aws_endpoint_url": "http://127.0.0.1:1"}
    lake = open_lake(Settings(lake=LakeSettings(
        root=settings.lake.root,
        storage_options=gone | {"max_retries": "0", "retry_timeout": "1s"},
    )))  # fmt: skip
    with pytest.raises(LakeUnavailable) as refused:
        lake.append("feedback", feedback_rows(0, 1), {APP: 1})
    assert "test-secret" not in str(refused.value)
