"""Takes out of a follow-up what addresses a judge or overrides instructions, before it is weighed.

A follow-up is untrusted input. The classifier cannot obey, but words such as "satisfied" in an
order to it would count as praise; so such sentences do not count at all.
"""

import re

SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
MAX_CHARS = 4000
"""Of a follow-up that are searched; the classifier reads less than that."""
MAX_REMOVED_SHARE = 0.5
"""Of the text; beyond it what is left is not taken for the user's own words."""
JUDGE = re.compile(
    r"""
    \b(?:ignore|disregard|forget|override|bypass|ignorier\w*|ignora\w*|ignore[zr]|oublie[zr]?)\b
        .{0,40}\b(?:previous|prior|above|earlier|preceding|all|any|instruct\w*|rules?|prompts?
        |guidelines?|anweisung\w*|vorherig\w*|instruccion\w*|anterior\w*|consignes?)\b
    | \b(?:system|developer|admin\w*)\s*(?:prompt|message|override|note|instruction)\b
    | (?:^|\n)\s*\W{0,4}(?:system|assistant|developer)\W{0,3}:
    | <\|?/?(?:system|im_start|im_end|inst|assistant|endoftext)\b | \[/?INST\]
    | \b(?:rate|score|grade|label|classify|mark|judge|evaluate|output|return|answer|respond|set)\b
        .{0,60}\b(?:as|with|to|=|of)?\s*(?:satisfied|positive|10/10|\+?1\.0|maximum|max|highest|full
        \s(?:marks|score)|perfect\s(?:score|rating)|negative|wrong|neutral|reward|probability)\b
    | \b(?:judge|grader|evaluator|classifier|reward\s+model|annotator|bewerter|evaluador)\b
        .{0,60}\b(?:must|should|shall|will|please|note|give|assign|rate|score|muss|debe)\b
    | \b(?:you\s+are\s+now|from\s+now\s+on|act\s+as|pretend\s+(?:to\s+be|you)|jailbreak\w*|DAN)\b
    | \b(?:new|updated|real|true|hidden)\s+(?:instructions?|task|directive)s?\s*[:\-]
    | \b(?:reveal|print|repeat|show)\b.{0,30}\b(?:system|hidden|initial)\s+(?:prompt|instructions?)
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def without_instructions(text: str) -> str | None:
    """`text` without sentences that instruct a judge or a model; None if little else is left."""
    head = text[:MAX_CHARS]
    if not JUDGE.search(head):
        return text
    sentences = SENTENCE.split(head)
    kept = [sentence for sentence in sentences if not JUDGE.search(sentence)]
    own = " ".join(kept).strip()
    if JUDGE.search(own) or len(kept) == 0 or not own:
        return None
    removed = 1 - len(kept) / len(sentences)
    return own if removed <= MAX_REMOVED_SHARE else None
