"""Detector 17: follow-up text that gives orders to whoever judges it.

Patterns over normalised text: no list is complete, so this is one layer. The judge's input is
fenced (`judge_input`), its answer is one word of a list, and weights never depend on words. Recall
and false alarms on real corpora: docs/measurements.md.
"""

import base64
import binascii
import re
import unicodedata
from typing import NamedTuple

from signals.trust.finding import Finding
from signals.trust.window import Window

BEFORE = r"(?:all|any|every|my|your|the|these|those|of|previous|prior|above|earlier|preceding|\s)*"
RULES = r"(?:instructions?|prompts?|rules?|guidelines?|directives?|context|orders|commands?|constraints?|policies|restrictions?|filters?|safeguards?)"  # noqa: E501
PATTERNS: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "override": rf"\b(?:ignore|disregard|forget|override|bypass|skip|drop|discard|do not follow|don't follow|stop following)\b[^.\n]{{0,20}}?\b{BEFORE}{RULES}\b",  # noqa: E501
        "override_all": r"\b(?:ignore|disregard|forget)\b (?:all|everything|anything)?\s?(?:of )?(?:what |that )?(?:you (?:were|have been) told|(?:came |was |said )?(?:above|before this|previous(?:ly)?))",  # noqa: E501
        "override_other": r"(?:ignorier\w*|vergiss|ignora|dimentica|ignore[zr]?|oublie[zr]?|olvida)\b[^.\n]{0,40}(?:anweisung\w*|regeln|istruzion\w*|regole|instruccion\w*|reglas|instructions|consignes|règles)",  # noqa: E501
        "score": r"\b(?:score|rate|grade|label|classify|mark|judge|evaluate|count|treat|record)\b (?:(?:this|it|me|the|my|as|previous|above|last|answer|reply|response|turn|message|user|conversation|all|following)\W+){1,6}(?:with |an? |at |as |with a |fully )*(?:10|100|1\.0|\+1|perfect|positive|satisfied|excellent|highest|max(?:imum)?|five|good|successful|accepted)\b",  # noqa: E501
        "verdict": r"\b(?:output|answer|respond|reply|return|print|say)\b (?:only |just |exactly |with |simply )*[\"'`]?(?:\{|satisfied|positive|label\b|score\b|verdict\b|1\.0\b)",  # noqa: E501
        "to_the_judge": r"\b(?:dear|hey|attention|note to|message to|instructions? (?:to|for)|to) (?:the )?(?:judge|grader|evaluator|classifier|rater|scorer|reward model|ai model|assistant reading)\b|\b(?:as|you are) (?:the |an? )?(?:judge|grader|evaluator|classifier|rater)\b",  # noqa: E501
        "role_marks": r"<\|?/?(?:im_start|im_end|system|assistant|user|endoftext|start_header_id|eot_id)\|?>|\[/?(?:INST|SYS|SYSTEM)\b|<<\s*/?sys\s*>>|^\s*#{2,}\s*(?:system|instruction|assistant|new task)|(?:^|\n)\s*(?:system|assistant|developer)\s*(?:prompt|message|override|note)?\s*[:>]|\b(?:end of|begin(?:ning)?(?: of)?) (?:system|user|the)? ?(?:prompt|message|data|input|document|context)\b|</?(?:untrusted|data|context|instructions|tool_result|document)\w*>",  # noqa: E501
        "persona": r"\b(?:you are|you're|you will be|act(?:ing)? as|pretend (?:to be|you are|that you|you have)|simulate|roleplay as|play the role of|from now on|you (?:now )?(?:are|operate|run)(?: now)?)\b[^.\n]{0,80}\b(?:dan|jailbroken|unrestricted|unfiltered|uncensored|no (?:content )?(?:restrictions?|rules|limits?|filters?|safety)|without (?:any )?(?:restrictions?|rules|limits?|filters?|safety)|developer mode|do anything now|evil|amoral|god mode|no longer bound|free from)\b",  # noqa: E501
        "modes": r"\b(?:developer mode|dan mode|jailbreak(?:ed)?|do anything now|god mode|debug mode (?:on|enabled)|safety (?:off|disabled)|stay in character|never (?:say|refuse)[^.\n]{0,40}(?:can't|cannot|unable|sorry)|as an ai language model)\b",  # noqa: E501
        "reveal": r"\b(?:reveal|print|show|repeat|output|dump|leak|tell me|disclose|display|paste)\b[^.\n]{0,40}\b(?:system prompt|initial prompt|hidden (?:prompt|instructions?)|your (?:instructions|prompt|rules)|secret(?:s| key)?|credentials|api keys?)\b",  # noqa: E501
        "new_rules": r"\b(?:new|updated|real|actual|following) (?:system )?(?:instructions?|rules?|directives?|task|policy|prompt)\b\s*(?:are|is|follow|:|from)|\b(?:these|my) (?:instructions|rules) (?:take precedence|override|supersede|replace)",  # noqa: E501
    }.items()
}
INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\U000e0000-\U000e007f]")
MANY_INVISIBLE = 3
ENCODED = re.compile(r"(?<![\w+/])[A-Za-z0-9+/]{24,}={0,2}(?![\w+/=])")
HEXADECIMAL = re.compile(r"(?<!\w)(?:[0-9a-fA-F]{2}\s?){16,}(?!\w)")
LEET = str.maketrans("013457@$", "oieastas")
LOOK_ALIKES = str.maketrans("аеорсухіѕԁɡοαε", "aeopcyxisdgoae")


class Match(NamedTuple):
    """Which pattern spoke, and in which reading of the text."""

    pattern: str
    reading: str


def injections(window: Window) -> list[Finding]:
    """17: traces whose follow-up text gives orders."""
    found = []
    for text in window.texts:
        match = injected(text.text)
        if match:
            found.append(Finding(
                detector="injections", scope="trace", scope_id=text.trace_id, figure=1.0,
                limit=0.0, since=window.since, until=window.until,
                why=f"its follow-up gives orders: pattern {match.pattern}, {match.reading}",
            ))  # fmt: skip
    return found


def injected(text: str) -> Match | None:
    """The first pattern that some reading of the text holds, else None."""
    if len(INVISIBLE.findall(text)) >= MANY_INVISIBLE:
        return Match("invisible", "as written")
    for reading, content in readings(text):
        for name, pattern in PATTERNS.items():
            if pattern.search(content):
                return Match(name, reading)
    return None


def readings(text: str) -> list[tuple[str, str]]:
    """The text normalised, and what a reader could decode from it."""
    plain = INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    plain = re.sub(r"[ \t]+", " ", plain)
    found = [("as written", plain), ("look-alikes", plain.translate(LOOK_ALIKES))]
    found.append(("digits for letters", plain.translate(LEET)))
    found.append(("spaced out", re.sub(r"\b(\w)[ .\-_](?=\w\b)", r"\1", plain)))
    found += [("base64", d) for run in ENCODED.findall(plain) if (d := _from_base64(run))]
    found += [("hexadecimal", d) for run in HEXADECIMAL.findall(plain) if (d := _from_hex(run))]
    found.append(("reversed", plain[::-1]))
    return [found[0]] + [(name, content) for name, content in found[1:] if content != plain]


def _from_base64(run: str) -> str:
    try:
        return _words(base64.b64decode(run + "=" * (-len(run) % 4)))
    except binascii.Error:
        return ""


def _from_hex(run: str) -> str:
    return _words(bytes.fromhex(run))


def _words(content: bytes) -> str:
    """The bytes as text, if they are mostly that."""
    text = content.decode("utf-8", "ignore")
    printable = sum(char.isprintable() or char.isspace() for char in text)
    return text if len(text) >= 12 and printable > 0.9 * len(content) else ""
