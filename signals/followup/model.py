"""The follow-up classifier as numbers in a JSON file: it runs where text is, without scikit-learn.

Multinomial logistic regression on L2-normed TF-IDF terms and on cues, its logits divided by a
temperature fitted on phrases that training had not seen (Guo et al. 2017, arXiv:1706.04599).
"""

import math
from collections import Counter
from functools import lru_cache
from importlib import resources
from typing import Literal, NamedTuple, get_args

import msgspec

from signals.followup.instructions import SENTENCE, without_instructions
from signals.followup.terms import MAX_CHARS, cues, text_terms
from tendril.ids import digest_of

FollowUpClass = Literal["satisfied", "neutral", "clarify", "rephrase", "wrong_or_revert"]
CLASSES: tuple[FollowUpClass, ...] = get_args(FollowUpClass)
CODE_VERSION = 1
"""Raise it whenever equal weights would answer differently by new code."""
MAX_PARTS = 6
"""Sentences of one follow-up that are weighed alone."""


class Verdict(NamedTuple):
    """What a follow-up says about the reply before it."""

    label: FollowUpClass
    probability: float
    """Of `label`, or of the class that was not sure enough where the classifier abstained."""
    abstained: bool


class FollowUpModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights by term and by cue, one number a class, in the order of `CLASSES`."""

    terms: dict[str, tuple[float, ...]]
    """[idf, weight a class...]."""
    cues: dict[str, tuple[float, ...]]
    bias: tuple[float, ...]
    temperature: float
    min_probability: float
    """Below it the classifier abstains."""
    min_known: float
    """Abstains where fewer of the words are known to it: other languages, other subjects."""

    @property
    def digest(self) -> str:
        """Names weights and code: it belongs into the recipe that used its verdicts."""
        content = msgspec.json.encode(self, order="sorted").decode()
        return digest_of("followup", str(CODE_VERSION), content)


@lru_cache(maxsize=1)
def packaged_model() -> FollowUpModel:
    """The model that ships with the package."""
    content = (resources.files("signals.followup") / "model.json").read_bytes()
    return msgspec.json.decode(content, type=FollowUpModel)


def classify(
    previous: str,
    reply: str,
    followup: str,
    *,
    gap_s: float | None = None,
    model: FollowUpModel | None = None,
) -> Verdict:
    """The class of `followup`, given the request and reply before it. Never raises on any text.

    Sentences that instruct a judge are left out before anything is weighed; where nothing else
    is said, and where it is unsure, it abstains: neutral, which is no reward.
    """
    model = model or packaged_model()
    heard = without_instructions(followup)
    if heard is None or len(followup) > MAX_CHARS:  # a page of text is read only in part
        return Verdict("neutral", 0.0, True)
    probabilities = class_probabilities(model, previous, reply, heard, gap_s)
    best = max(range(len(CLASSES)), key=probabilities.__getitem__)
    sure = probabilities[best] >= model.min_probability
    if CLASSES[best] == "satisfied" and any(
        _complains(model, previous, reply, part) for part in parts_of(heard)
    ):
        return Verdict("neutral", probabilities[best], True)
    if sure and known_share(model, heard) >= model.min_known:
        return Verdict(CLASSES[best], probabilities[best], False)
    return Verdict("neutral", probabilities[best], True)


def parts_of(text: str) -> list[str]:
    """The sentences of a text, the first and last few of a long one; none for a single one."""
    parts = [part for part in SENTENCE.split(text) if part.strip()]
    if len(parts) < 2:
        return []
    return parts if len(parts) <= MAX_PARTS else parts[: MAX_PARTS // 2] + parts[-MAX_PARTS // 2 :]


def _complains(model: FollowUpModel, previous: str, reply: str, part: str) -> bool:
    """Whether a sentence alone is no praise: text written around it must not hide that."""
    found = class_probabilities(model, previous, reply, part)
    against = math.fsum(
        p for p, label in zip(found, CLASSES, strict=True) if label not in ("satisfied", "neutral")
    )
    return against >= model.min_probability


def class_probabilities(
    model: FollowUpModel, previous: str, reply: str, followup: str, gap_s: float | None = None
) -> list[float]:
    """One probability a class, in the order of `CLASSES`."""
    weighed = []
    for term, count in Counter(text_terms(followup)).items():
        row = model.terms.get(term)
        if row is not None:
            weighed.append(((1 + math.log(count)) * row[0], row))
    norm = math.sqrt(math.fsum(value * value for value, _ in weighed)) or 1.0
    logits = list(model.bias)
    for value, row in weighed:
        for i in range(len(logits)):
            logits[i] += value / norm * row[i + 1]
    for cue, size in cues(previous, reply, followup, gap_s).items():
        for i, weight in enumerate(model.cues.get(cue, ())):
            logits[i] += size * weight
    return softmax([logit / model.temperature for logit in logits])


def softmax(logits: list[float]) -> list[float]:
    """Sums to 1; safe for large logits."""
    top = max(logits)
    exps = [math.exp(logit - top) for logit in logits]
    total = math.fsum(exps)
    return [value / total for value in exps]


def known_share(model: FollowUpModel, followup: str) -> float:
    """Share of the text's character runs that training has seen; 1 for a text without any."""
    found = [term for term in text_terms(followup) if term.startswith("c:")]
    return sum(term in model.terms for term in found) / len(found) if found else 1.0
