"""The batch step with Presidio, as far as it goes without the package and a model of 15 MB."""

import sys
from pathlib import Path

import pytest

from signals.privacy.presidio import ModelMissing, redact_batch, replaced
from signals.privacy.redaction import redact


def test_a_model_that_is_not_there_is_refused_before_anything_is_imported(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"config\.cfg.*Nothing is downloaded"):
        next(redact_batch(["x"], tmp_path / "en_core_web_sm"))
    with pytest.raises(ModelMissing):
        next(redact_batch(["x"], Path("en_core_web_sm")))  # a name would be fetched
    assert "spacy" not in sys.modules
    assert "presidio_analyzer" not in sys.modules


def test_names_are_replaced_beside_what_patterns_find() -> None:
    found = replaced(redact("Ada Okafor <ada@example.org> met Ada"), ["Ada", "Ada Okafor", " "])
    assert found.text == "[name] <[email]> met [name]"
    assert found.counts == {"email": 1, "name": 2}
