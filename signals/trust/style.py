"""What a reply's own words say about it: asks back, refuses, flatters, signs off.

Called where the text is (the serving node, or a judge's input with consent); only the four marks
travel on, as columns of detector 8. English cues; other languages count as none of them.
"""

import re
from typing import NamedTuple

CODE = re.compile(r"```.*?(?:```|$)", re.DOTALL)
CLARIFIES = re.compile(
    r"\b(?:could|can|would) you (?:please )?(?:clarify|specify|share|provide|confirm|tell me"
    r"|explain what|give me more)|\b(?:which|what exactly|what kind of|do you (?:want|mean|prefer)|should i"  # noqa: E501
    r"|would you like me to|are you (?:using|looking|asking))\b[^.\n]*\?|\bbefore i (?:start|begin|"
    r"proceed|make)|\bneed (?:a bit )?more (?:information|details|context)",
    re.IGNORECASE,
)
REFUSES = re.compile(
    r"\bi(?:'m| am) (?:sorry|afraid|unable|not able|not allowed)\b|\bi (?:can't|cannot|can not"
    r"|won't|will not|must decline|have to decline) (?:help|assist|do|provide|comply|create|write)?",  # noqa: E501
    re.IGNORECASE,
)
FLATTERS = re.compile(
    r"\b(?:great|excellent|fantastic|brilliant|wonderful|amazing|insightful|fascinating|smart) "
    r"(?:question|idea|point|choice|approach|thinking|instinct|observation|work)\b|\byou(?:'re| are)"  # noqa: E501
    r" (?:absolutely|totally|completely|so|quite) right\b|\bwhat an? (?:great|excellent|brilliant|"
    r"wonderful|insightful)|\bi love (?:this|that|your|how you)\b",
    re.IGNORECASE,
)
SIGNS_OFF = re.compile(
    r"\b(?:let me know if|feel free to|hope (?:this|that|it) helps|happy (?:to help|coding)|don't "
    r"hesitate to|if you (?:have any|need any|need anything)|is there anything else|good luck"
    r"|have a (?:great|nice|good))\b",
    re.IGNORECASE,
)
MIN_EDIT_CHARS = 40
END_CHARS = 200


class Style(NamedTuple):
    """Marks of one reply, each 0 or 1."""

    clarifies: float
    refuses: float
    flatters: float
    signs_off: float


def style_of(reply: str) -> Style:
    """Marks of a reply's prose; code is left out. Asking back counts only where nothing is done."""
    code = sum(len(block) for block in CODE.findall(reply))
    prose = CODE.sub(" ", reply)
    asks = bool(CLARIFIES.search(prose)) and code < MIN_EDIT_CHARS
    return Style(
        clarifies=float(asks),
        refuses=float(bool(REFUSES.search(prose))),
        flatters=float(bool(FLATTERS.search(prose))),
        signs_off=float(bool(SIGNS_OFF.search(prose[-END_CHARS:]))),
    )
