"""Takes secrets and personal data out of text: regular expressions, then detect-secrets.

Never complete: names, street addresses and secrets without a form stay (docs/measurements.md has
the recall by class). Where it sits: text that goes to a judge or a classifier, and text that an
operator exports. The event log holds no prose; token ids are words all the same, and what keeps
those off the log is consent, not redaction.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import NamedTuple

from signals.privacy.checksums import is_card, is_iban
from signals.privacy.known_secrets import known_secrets


class Span(NamedTuple):
    """Where something was found, in characters; not what."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Redacted:
    """Text without what was found; the found is nowhere in it, and its repr shows no text."""

    text: str = field(repr=False)
    counts: Mapping[str, int]
    """By class."""


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _is_phone(text: str) -> bool:
    return 8 <= sum(map(str.isdigit, text)) <= 15


def _any(_: str) -> bool:
    return True


PATTERNS: tuple[tuple[str, re.Pattern[str], Callable[[str], bool]], ...] = (
    ("private_key", re.compile(
        r"-----BEGIN (?:[A-Z0-9 ]{0,30})PRIVATE KEY(?: BLOCK)?-----"
        r"(?:.{0,20000}?-----END (?:[A-Z0-9 ]{0,30})PRIVATE KEY(?: BLOCK)?-----|.*)", re.DOTALL),
        _any),
    ("url_credentials", re.compile(r"(?<=://)[^\s/:@\"'<>]{1,200}:[^\s/@\"'<>]{1,200}(?=@)"), _any),
    ("jwt", re.compile(r"\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]{5,}"), _any),
    ("key", re.compile(
        r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{30,}\b|\bgithub_pat_\w{30,}\b"
        r"|\bglpat-[\w-]{20,}|\bxox[abeoprs]-[\w-]{10,}|\bAIza[\w-]{35}|\b(?:sk|rk)_live_\w{16,}\b"
        r"|\bsk-[\w-]{20,}|\bnpm_[A-Za-z0-9]{36}\b|\bpypi-[\w-]{50,}|\bhf_[A-Za-z]{30,}\b"
        r"|\btk-[\w-]{32}|\bto-[\w-]{32}|\bSG\.[\w-]{16,}\.[\w-]{16,}"), _any),
    ("password", re.compile(
        r"(?i)\b(?:pass(?:word|wd|phrase)?|pwd|secret|token|api[_-]?key|authorization|bearer)\b"
        r"[\"']?\s{0,3}(?:[:=]|\bis\b|(?<=bearer)\s)\s{0,3}[\"']?"
        r"(?P<value>(?=[^\s\"',;(){}\[\]]{0,128}[0-9!@#$%^&*+/])[^\s\"',;(){}\[\]]{6,128})"), _any),
    ("email", re.compile(
        r"(?<![\w.+-])[\w.+-]{1,64}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.){1,5}[A-Za-z]{2,24}\b"),
        _any),
    ("iban", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"), is_iban),
    ("card", re.compile(r"(?<![\d.])(?:\d[ -]?){12,18}\d(?![\d.])"), is_card),
    ("national_id", re.compile(
        r"(?<![\d-])(?!000|666|9\d\d)\d{3}-(?!00)\d\d-(?!0000)\d{4}(?![\d-])"), _any),
    ("ip_address", re.compile(
        r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)"
        r"|(?<![\w:])(?:[0-9A-Fa-f]{0,4}:){3,7}[0-9A-Fa-f]{0,4}(?![\w:])"), _is_ip),
    ("phone", re.compile(
        r"(?<![\w+.-])(?:\+\d{1,3}[ .-]?(?:\(0?\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){1,4}"
        r"|\(\d{3}\)[ .-]?\d{3}[ .-]\d{4}|\d{3}[ .-]\d{3}[ .-]\d{4}"
        r"|0\d{2,4}[ /-]\d{3,4}[ -]?\d{3,5})"
        r"(?![\w-]|\.\d)"), _is_phone),
)  # fmt: skip
"""Class, form, and what a match must pass besides. Earlier classes win where two overlap."""
HINTS = re.compile(r"[@:\d=_-]|eyJ|AKIA|ASIA|AIza|(?i:is |bearer|key|secret|token)")
"""Text without any of these has nothing that a pattern could find."""


def redact(text: str) -> Redacted:
    """Replace what is found by `[class]`. Pure; never logs, and raises nothing about the text."""
    if not HINTS.search(text):
        return Redacted(text, {})
    spans = _first_of_overlapping([*_of_patterns(text), *_of_known(text)])
    if not spans:
        return Redacted(text, {})
    parts, end = [], 0
    for span in spans:
        parts += [text[end : span.start], f"[{span.label}]"]
        end = span.end
    parts.append(text[end:])
    return Redacted("".join(parts), Counter(span.label for span in spans))


def _of_patterns(text: str) -> Iterator[Span]:
    for label, pattern, passes in PATTERNS:
        for match in pattern.finditer(text):
            group = "value" if "value" in pattern.groupindex else 0
            if passes(match[group]):
                yield Span(*match.span(group), label)


def _of_known(text: str) -> Iterator[Span]:
    for secret in known_secrets(text):
        start = text.find(secret)
        while start >= 0:
            yield Span(start, start + len(secret), "key")
            start = text.find(secret, start + len(secret))


def _first_of_overlapping(spans: Iterable[Span]) -> list[Span]:
    """In order of place; of two that overlap the one that was found first, grown to hold both."""
    kept: list[Span] = []
    for span in sorted(spans, key=lambda s: s.start):
        if kept and span.start < kept[-1].end:
            last = kept[-1]
            kept[-1] = last._replace(end=max(last.end, span.end))
        else:
            kept.append(span)
    return kept
