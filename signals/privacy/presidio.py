"""Presidio as a batch step of its own, for exports: finds names, slowly, and downloads nothing.

About 57 messages a second (docs/measurements.md), so it is never in the path of an event. Needs the
extra `presidio` and a spaCy model's folder on this machine. Given a model's *name* spaCy's callers
would fetch it; at first use Presidio's e-mail and URL recognisers would fetch a list of domains,
so they are not loaded: `redact` finds e-mail, and URLs alone are nobody's secret.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from signals.privacy.redaction import Redacted, redact

ENTITIES = ("PERSON", "LOCATION", "NRP")
MIN_SCORE = 0.5
MODEL_FILE = "config.cfg"


class ModelMissing(ValueError):
    """No model folder on this machine; it is not fetched."""


def redact_batch(texts: Iterable[str], model: Path) -> Iterator[Redacted]:
    """`redact`, then names, places and groups of people by Presidio with the model in `model`.

    Raises `ModelMissing` before anything is imported, `ModuleNotFoundError` without the extra.
    """
    if not (model / MODEL_FILE).is_file():
        raise ModelMissing(
            f"{model}: expected the folder of a spaCy model, with {MODEL_FILE} in it, got none. "
            "Nothing is downloaded here: put a pinned model there and name its folder"
        )
    nlp = _load(model)
    for text in texts:
        yield replaced(redact(text), _people(nlp, text))


def replaced(redacted: Redacted, names: Iterable[str]) -> Redacted:
    """Replace each of `names` in what is left of the text; longer ones first."""
    text, counts = redacted.text, dict(redacted.counts)
    for name in sorted(set(names), key=lambda name: (-len(name), name)):
        num = text.count(name)
        if name.strip() and num:
            text = text.replace(name, "[name]")
            counts["name"] = counts.get("name", 0) + num
    return Redacted(text, counts)


def _load(model: Path) -> Any:
    """Presidio's own recogniser on a loaded model: its engine is what would reach out."""
    import spacy
    from presidio_analyzer.nlp_engine import SpacyNlpEngine
    from presidio_analyzer.predefined_recognizers import SpacyRecognizer

    engine = SpacyNlpEngine(models=[{"lang_code": "en", "model_name": str(model)}])
    engine.nlp = {"en": spacy.load(model)}
    return engine, SpacyRecognizer(supported_entities=list(ENTITIES))


def _people(loaded: Any, text: str) -> list[str]:
    engine, recognizer = loaded
    artifacts = engine.process_text(text, "en")
    results = recognizer.analyze(text, list(ENTITIES), artifacts)
    return [text[r.start : r.end] for r in results if r.score >= MIN_SCORE]
