"""Turns a follow-up into named terms: the one definition that training and serving share.

Text terms are words, word pairs and character runs, weighted by TF-IDF later. Cues are facts beside
the text: likeness to the previous request and to the reply, length, questions, code, time.
"""

import itertools
import math
import re
from collections.abc import Iterable

MAX_CHARS = 1200
"""Of a follow-up that are read, from its head and tail: bounds the time a message can take."""
HEAD_CHARS = 800
SHORT_REPLY_END = 300
CODE = re.compile(r"```.*?(?:```|\Z)|^(?: {4}|\t).+$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
CODE_LINE = re.compile(r"[;{}]\s*$|^\s*(?:import|from|def|class|const|let|SELECT|FROM)\b", re.M)
FAULT = re.compile(
    r"\b(?:\w+(?:Error|Exception)|Traceback|FAILED|error\[|exit code|panic:|fatal:|npm ERR)"
)
WORD = re.compile(r"\w+(?:'\w+)?")
GLYPH = re.compile(r"[\U0001F300-\U0001FAFF\u2600-\u27BF]|[!?]{2,}|\.{3,}")
NUMBER = re.compile(r"\d+")
# Function words say nothing about whether two requests are the same one.
COMMON = frozenset(
    [
        "a",
        "an",
        "the",
        "i",
        "it",
        "is",
        "to",
        "of",
        "for",
        "in",
        "on",
        "my",
        "me",
        "you",
        "that",
        "this",
        "and",
        "or",
        "do",
        "does",
        "how",
        "what",
        "can",
        "could",
        "please",
        "with",
        "be",
        "should",
        "would",
        "want",
        "need",
        "give",
        "make",
        "der",
        "die",
        "das",
        "ein",
        "eine",
        "ich",
        "ist",
        "und",
        "für",
        "mir",
        "bitte",
        "wie",
        "el",
        "la",
        "los",
        "las",
        "un",
        "una",
        "de",
        "que",
        "y",
        "por",
        "para",
        "me",
        "mi",
        "le",
        "les",
        "des",
        "du",
        "et",
        "une",
        "je",
        "il",
        "est",
        "pour",
        "dans",
    ]
)


def excerpt(text: str) -> str:
    """The part of `text` that is read."""
    if len(text) <= MAX_CHARS:
        return text
    return text[:HEAD_CHARS] + "\n" + text[-(MAX_CHARS - HEAD_CHARS) :]


def text_terms(text: str) -> list[str]:
    """Words, word pairs and character runs of 3 and 4 of one message, repeats included."""
    prose = NUMBER.sub("0", CODE.sub(" codeblock ", excerpt(text)).lower().replace("\u2019", "'"))
    words = WORD.findall(prose)
    glyphs = GLYPH.findall(prose)
    terms = [f"w:{word}" for word in words]
    edges = ["^", *words, "$"]
    terms += [f"w:{a} {b}" for a, b in itertools.pairwise(edges)]
    terms += [f"g:{glyph[:3]}" for glyph in glyphs]
    for word in words:
        padded = f" {word} "
        for size in (3, 4):
            terms += [f"c:{padded[i : i + size]}" for i in range(len(padded) - size + 1)]
    return terms


def cues(previous: str, reply: str, followup: str, gap_s: float | None = None) -> dict[str, float]:
    """Facts beside the text, by name; `gap_s` seconds from reply to follow-up, None if unknown."""
    text = excerpt(followup)
    words = content_words(text)
    number_of_words = len(WORD.findall(text))
    found = {
        f"same={level(likeness(words, content_words(excerpt(previous))))}": 1.0,
        f"chars={level(likeness(runs(text), runs(excerpt(previous))))}": 1.0,
        f"covered={level(share_in(content_words(excerpt(previous)), words))}": 1.0,
        f"quotes={level(share_in(words, content_words(excerpt(reply))))}": 1.0,
        f"length={min(6, int(math.log2(number_of_words + 1)))}": 1.0,
    }
    asks = "?" in reply[-SHORT_REPLY_END:]
    flags = {
        "question": text.rstrip().endswith("?"),
        "reply_asks": asks,
        "reply_asks_short": asks and number_of_words <= 6,
        "code": bool(CODE_LINE.search(text) or CODE.search(text)),
        "fault": bool(FAULT.search(text)),
        "shout": text.isupper() and number_of_words > 1,
        "soon": gap_s is not None and gap_s < 10,
        "late": gap_s is not None and gap_s > 600,
    }
    return found | {name: 1.0 for name, is_so in flags.items() if is_so}


def content_words(text: str) -> set[str]:
    """Lower-case words that carry meaning, cut to six letters: endings differ."""
    return {word[:6] for word in WORD.findall(text.lower()) if word not in COMMON}


def runs(text: str) -> set[str]:
    """Its runs of three characters."""
    plain = " ".join(WORD.findall(text.lower()))
    return {plain[i : i + 3] for i in range(len(plain) - 2)}


def likeness(a: set[str], b: set[str]) -> float:
    """Dice coefficient in [0, 1]; 0 where either is empty."""
    return 2 * len(a & b) / (len(a) + len(b)) if a and b else 0.0


def share_in(part: set[str], whole: Iterable[str]) -> float:
    """Share of `part` that occurs in `whole`; 0 for an empty part."""
    return len(part.intersection(whole)) / len(part) if part else 0.0


def level(share: float) -> int:
    """A share as one of six steps, so that a linear model can bend."""
    return min(5, int(share * 5 + 1e-9) + (1 if share > 0 else 0))
