"""Detector 4: the same words, nearly, from several accounts (MinHash, banded).

Text is what the caller hands in, see `FollowUpText`; what is found names accounts and never the
words. Short phrases are everybody's and are left alone.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

from signals.trust.finding import Finding
from signals.trust.window import FollowUpText, Window

SIMILARITY = 0.8
"""Jaccard similarity of 3-word shingles from which on two texts are one."""
MIN_WORDS = 8
MIN_ACCOUNTS = 4
NUM_PERMUTATIONS = 128
WORD = re.compile(r"\w+")


def duplicates(window: Window) -> list[Finding]:
    """4: one finding an account in a group of at least `MIN_ACCOUNTS` with one text."""
    found: dict[str, Finding] = {}
    for group in groups(window.texts):
        accounts = sorted({text.account for text in group})
        if len(accounts) < MIN_ACCOUNTS:
            continue
        why = f"{len(accounts)} accounts wrote nearly the same"
        for account in accounts:
            found.setdefault(account, Finding(
                detector="duplicates", scope="user", scope_id=account,
                figure=float(len(accounts)), limit=float(MIN_ACCOUNTS - 1),
                since=window.since, until=window.until, why=why,
            ))  # fmt: skip
    return list(found.values())


def groups(texts: Sequence[FollowUpText]) -> Iterator[list[FollowUpText]]:
    """Texts of several, each with those that are nearly it; every text is in at most one group."""
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(threshold=SIMILARITY, num_perm=NUM_PERMUTATIONS)
    hashes = {}
    for number, text in enumerate(texts):
        shingles = shingles_of(text.text)
        if shingles:
            sketch = MinHash(num_perm=NUM_PERMUTATIONS)
            sketch.update_batch(shingles)
            hashes[number] = sketch
            index.insert(number, sketch)
    taken: set[int] = set()
    for number, sketch in hashes.items():
        if number in taken:
            continue
        near = [
            other
            for other in sorted(index.query(sketch))
            if other not in taken and sketch.jaccard(hashes[other]) >= SIMILARITY
        ]
        taken.update(near)
        if len(near) > 1:
            yield [texts[other] for other in near]


def shingles_of(text: str) -> list[bytes]:
    """Distinct runs of three words, lower case, without marks; none for a short text."""
    words = WORD.findall(unicodedata.normalize("NFKC", text).lower())
    if len(words) < MIN_WORDS:
        return []
    runs = {" ".join(words[start : start + 3]) for start in range(len(words) - 2)}
    return [run.encode() for run in sorted(runs)]
