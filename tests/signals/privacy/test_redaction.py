"""Redaction: what is found, what is missed on purpose, and that no secret comes out again.

Secrets are put together here from parts, so that no scanner takes them for real ones.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planted import CLASSES, planted, recall
from signals.privacy.checksums import is_card, is_iban
from signals.privacy.redaction import redact


@pytest.mark.parametrize("label", CLASSES)
def test_planted_secrets_of_each_class_are_found_and_gone(label: str) -> None:
    for secret, text in planted(label, 40, random.Random(label)):
        redacted = redact(text)
        if label not in ("disguised", "name", "address", "bare_secret"):
            assert secret not in redacted.text, label
            assert secret not in repr(redacted)
            assert sum(redacted.counts.values()) >= 1


def test_what_has_no_form_is_missed_and_that_is_known() -> None:
    missed = {label: recall(label, 40, random.Random(label)) for label in CLASSES}
    assert [label for label, share in missed.items() if share < 1] == [
        "disguised", "name", "address", "bare_secret",
    ]  # fmt: skip


def test_text_without_secrets_comes_back_as_it_was() -> None:
    for text in (
        "please rename the variable and add a test",
        "def f(john): return rows[1:2]",
        "version 1.24.3, port 8080, 2026-11-30 23:15:00, 3.14159265358979",
        "for i in range(1000000): total += i * 12345678",
        "secret is a bad name; token = next(tokens)",
        "std::vector<int> a; x::y::z",
    ):
        assert redact(text).text == text


def test_two_classes_in_one_text_are_counted_apart() -> None:
    redacted = redact("from ada@example.org and bob@example.org at 10.0.0.7")
    assert redacted.text == "from [email] and [email] at [ip_address]"
    assert redacted.counts == {"email": 2, "ip_address": 1}


def test_a_private_key_that_is_cut_off_goes_to_its_end() -> None:
    head = "-----BEGIN OPENSSH " + "PRIVATE KEY-----"
    assert redact(f"see {head}\nb3BlbnNzaC1rZXk\nAAAA").text == "see [private_key]"


@given(st.text(max_size=200))
def test_any_text_is_taken_and_a_second_pass_adds_nothing_new(text: str) -> None:
    once = redact(text)
    assert redact(once.text).text == once.text or once.counts


def test_card_and_account_numbers_are_checked() -> None:
    assert is_card("4111 1111 1111 1111")  # the schemes' own example
    assert not is_card("4111 1111 1111 1112")
    assert not is_card("0000 0000 0000 0000")
    assert is_iban("GB82 WEST 1234 5698 7654 32")  # the registry's own example
    assert not is_iban("GB82 WEST 1234 5698 7654 33")


@pytest.mark.parametrize(
    "unit", ["1 ", "a.", "@a", ":", "eyJ", "+1 ", "AB12", "x:", "://a:", "token=", "a@a.", "-"]
)
def test_hostile_text_ends(unit: str) -> None:
    """A pattern that backtracks without bound would run into the suite's time limit."""
    assert redact("a@b.org " + unit * 5_000).text.startswith("[email] ")
