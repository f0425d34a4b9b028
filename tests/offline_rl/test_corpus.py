"""The two worlds of text never overlap, and their splits are the same on every machine."""

import json

import pytest

from offline_rl.autocomplete.corpus import base_files, house_files, split_of
from tendril.settings import PACKAGED_CHECKPOINT


def test_the_split_depends_on_the_name_alone():
    assert split_of("stdlib/abc.py") == split_of("stdlib/abc.py")
    held_out = sum(split_of(f"package/file_{i}.py") == "held_out" for i in range(5_000))
    assert 420 < held_out < 580  # a tenth


@pytest.mark.slow
def test_the_base_never_reads_the_companys_code():
    base, house = {f.name for f in base_files()}, {f.name for f in house_files()}
    assert base
    assert house
    assert not {name.split("/")[0] for name in base} & {name.split("/")[0] for name in house}


def test_the_companys_code_has_a_style_of_its_own():
    text = "".join(file.text for file in house_files())
    assert text.count('"') > 5 * text.count("'")


def test_held_out_files_are_recorded_beside_the_weights():
    recorded = json.loads((PACKAGED_CHECKPOINT / "held_out_files.json").read_text())
    assert recorded
    assert all(split_of(name) == "held_out" for name in recorded)
