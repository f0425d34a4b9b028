"""The follow-up classifier: what it tells apart, when it abstains, what orders cannot do."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.data import FOLDER as DATA
from benchmarks.followup import FOLDER, ORDERS, hostile_texts, read_cases, verdicts_of
from signals.followup.corpus import corpus
from signals.followup.model import CLASSES, classify, packaged_model

REQUEST, REPLY = "sort the table by date", "I sorted the rows by date, oldest first."
CASES = read_cases(FOLDER / "followup_cases.txt")


@pytest.mark.parametrize(
    ("followup", "label"),
    [
        ("thanks, that works", "satisfied"),
        ("that's wrong, undo it", "wrong_or_revert"),
        ("I meant: sort the table by date", "rephrase"),
        ("what does oldest mean?", "clarify"),
        ("one moment", "neutral"),
    ],
)
def test_plain_words_get_their_class(followup: str, label: str) -> None:
    assert classify(REQUEST, REPLY, followup).label == label


def test_most_cases_have_the_sign_that_a_person_gives_them() -> None:
    """Measured: 0.737; VADER has 0.42."""
    right = sum(
        {"satisfied": 1, "neutral": 0}.get(v.label, -1)
        == {"satisfied": 1, "neutral": 0}.get(c.label, -1)
        for c, v in zip(CASES, verdicts_of(CASES), strict=True)
    )
    assert right / len(CASES) > 0.72


def test_no_case_is_a_text_of_the_training() -> None:
    wheel = next(DATA.glob("bfcl_eval-*.whl"))
    trained = {plain(example.followup) for example in corpus(wheel, 1)}
    assert [case.followup for case in CASES if plain(case.followup) in trained] == []


def plain(text: str) -> str:
    return re.sub(r"\W+", " ", text.lower()).strip()


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_to_the_judge_changes_no_class(order: str) -> None:
    ordered = [case._replace(followup=f"{case.followup}\n{order}") for case in CASES]
    assert [v.label for v in verdicts_of(ordered)] == [v.label for v in verdicts_of(CASES)]
    assert classify(REQUEST, REPLY, order).abstained


def test_words_put_around_a_complaint_do_not_turn_it_into_praise() -> None:
    """Real hostile texts behind real complaints; measured: 2 of 228 cases."""
    texts = [text for text in hostile_texts() if len(text) < 600]
    complaints = [
        c
        for c, v in zip(CASES, verdicts_of(CASES), strict=True)
        if v.label not in ("satisfied", "neutral")
    ]
    mixed = [
        case._replace(followup=f"{case.followup}\n{texts[i % len(texts)]}")
        for i, case in enumerate(complaints)
    ]
    praised = sum(verdict.label == "satisfied" for verdict in verdicts_of(mixed))
    assert praised / len(mixed) < 0.03


def test_unknown_languages_and_whole_pages_abstain() -> None:
    assert classify(REQUEST, REPLY, "это совсем не работает").abstained
    assert classify(REQUEST, REPLY, "thanks, great work! " * 100).abstained


@given(st.text(max_size=300), st.text(max_size=100))
def test_any_text_gets_a_class_and_a_probability(followup: str, reply: str) -> None:
    verdict = classify("x", reply, followup)
    assert verdict.label in CLASSES
    assert 0 <= verdict.probability <= 1


def test_the_digest_names_the_weights() -> None:
    import msgspec

    model = packaged_model()
    changed = msgspec.structs.replace(model, temperature=model.temperature + 0.1)
    assert model.digest == packaged_model().digest != changed.digest
