"""Training texts: phrases put together by chance, and real prompts of a tool-use benchmark.

No public package holds labelled follow-ups to a coding assistant, so labels come from how a text
was made. Pairs of real prompts with one right answer are repeats; the next turn of a real
multi-turn task is a next goal; the turn that gives a missing parameter is an answer, so neutral.
"""

import itertools
import json
import random
import re
import tomllib
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from signals.followup.model import FollowUpClass

LANGUAGES = {"en": 1.0, "de": 0.35, "es": 0.3, "fr": 0.3}
PER_CLASS = 1300
BENCHMARK = "bfcl_eval/data/"
SLOT = re.compile(r"\{(thing|word|tool|error|number)\}")
MAX_REAL = 350
"""Real examples of one kind."""
REPLIES = (
    "Here is the {0}: it uses {1} and keeps the {2}.", "I changed the {1} so that the {0} works.",
    "I added a {0} with {1} and {2}.", "The reason is the {1}: set the {0} first.",
    "Done. The {0} now has {1}. Do you use {2}?",
    "You can use {1} for that. Which {2} do you have?",
)  # fmt: skip
REPLY_WORDS = [
    "index",
    "cache",
    "decorator",
    "buffer",
    "thread",
    "token",
    "header",
    "timeout",
    "generator",
    "closure",
    "cursor",
    "schema",
    "proxy",
    "iterator",
    "lambda",
    "mutex",
    "callback",
    "promise",
    "socket",
    "hook",
    "selector",
    "viewport",
    "volume",
    "layer",
    "cookie",
    "lock",
]


class Example(NamedTuple):
    """One labelled follow-up; `group` names what it was made from, for splits without leaks."""

    previous: str
    reply: str
    followup: str
    label: FollowUpClass
    group: str


def corpus(wheel: Path, seed: int) -> list[Example]:
    """All training examples, in a fixed order; `wheel` is that of bfcl-eval."""
    chance = random.Random(seed)
    made = list(_made(chance))
    return made + real_examples(wheel, chance)


def _made(chance: random.Random) -> Iterator[Example]:
    source = resources.files("signals.followup") / "phrases.toml"
    tables = tomllib.loads(source.read_text(encoding="utf-8"))
    slots = tables.pop("slots")
    for language, share in LANGUAGES.items():
        table = slots | tables[language]
        for label in ("satisfied", "neutral", "clarify", "rephrase", "wrong_or_revert"):
            for _ in range(round(PER_CLASS * share)):
                yield _example(chance, table, language, label)


def _example(
    chance: random.Random, table: dict[str, Any], language: str, label: FollowUpClass
) -> Example:
    request_group = chance.choice(table["requests"])
    words = chance.sample(REPLY_WORDS, 3)
    table = table | {"word": words}
    previous = chance.choice(request_group)
    reply = chance.choice(REPLIES).format(*words)
    if label == "rephrase":
        phrase = previous
        text = _noisy(chance, chance.choice([r for r in request_group if r != previous]), table)
        if chance.random() < 0.5:
            text = chance.choice(table["again"]) + text
    else:
        kind = "goal" if label == "satisfied" and chance.random() < 0.3 else label
        phrase = chance.choice(table[kind])
        text = _noisy(chance, _filled(chance, phrase, table), table)
        if kind == label and chance.random() < 0.15:
            text += chance.choice((". ", ", ", "\n", " - ")) + _tail(chance, table, label)
    return Example(previous, reply, text, label, f"{language}:{phrase}")


def _tail(chance: random.Random, table: dict[str, Any], label: FollowUpClass) -> str:
    """What may follow a phrase without turning its class."""
    kind = {"satisfied": "goal"}.get(label, label)
    return _filled(chance, chance.choice(table[kind]), table)


def _filled(chance: random.Random, phrase: str, table: dict[str, Any]) -> str:
    return re.sub(SLOT, lambda m: chance.choice(table[m[1]]), phrase)


def _noisy(chance: random.Random, text: str, table: dict[str, Any]) -> str:
    """As people type: an opening, an ending, no capitals, a slip."""
    text = chance.choice(table["opening"]) + text + chance.choice(table["ending"])
    if chance.random() < 0.3:
        text = text.replace("'", "")
    if chance.random() < 0.2 and len(text) > 5:
        at = chance.randrange(len(text) - 1)
        text = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    return text if chance.random() < 0.4 else text.lower()


def real_examples(wheel: Path, chance: random.Random) -> list[Example]:
    """Repeats, next goals and answers out of the benchmark's prompts; at most `MAX_REAL` a kind."""
    with zipfile.ZipFile(wheel) as archive:
        kinds = [_repeats(archive), _turns(archive), _answers(archive)]
    return [
        example
        for found in kinds
        for example in chance.sample(found, min(MAX_REAL, len(found)))
    ]  # fmt: skip


def _rows(archive: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    lines = archive.read(f"{BENCHMARK}{name}").decode().splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def _said(turn: list[dict[str, str]]) -> str:
    return next((m["content"] for m in reversed(turn) if m["role"] == "user"), "")


def _repeats(archive: zipfile.ZipFile) -> list[Example]:
    """Pairs of different prompts with the same right answer."""
    by_answer: dict[str, list[str]] = defaultdict(list)
    for name in ("BFCL_v4_live_simple.json", "BFCL_v4_live_multiple.json"):
        answers = {row["id"]: row for row in _rows(archive, f"possible_answer/{name}")}
        for row in _rows(archive, name):
            answer = json.dumps(answers[row["id"]]["ground_truth"], sort_keys=True)
            by_answer[answer].append(_said(row["question"][0]))
    return [
        Example(a, "", b, "rephrase", f"real:{answer}")
        for answer, prompts in by_answer.items()
        for a in prompts for b in prompts if a != b
    ]  # fmt: skip


def _turns(archive: zipfile.ZipFile) -> list[Example]:
    found = []
    for row in _rows(archive, "BFCL_v4_multi_turn_base.json"):
        said = [text for turn in row["question"] if (text := _said(turn))]
        for a, b in itertools.pairwise(said):
            found.append(Example(a, "", b, "satisfied", f"real:{row['id']}"))
    return found


def _answers(archive: zipfile.ZipFile) -> list[Example]:
    """Turns that give what the turn before left out: that turn has no right answer on its own."""
    name = "BFCL_v4_multi_turn_miss_param.json"
    answers = {row["id"]: row["ground_truth"] for row in _rows(archive, f"possible_answer/{name}")}
    found = []
    for row in _rows(archive, name):
        said = [_said(turn) for turn in row["question"]]
        for at in range(len(said) - 1):
            if not answers[row["id"]][at] and said[at] and said[at + 1]:
                reply = "I need one more detail for that. Which one do you mean?"
                found.append(
                    Example(said[at], reply, said[at + 1], "neutral", f"real:{row['id'][-4:]}")
                )
    return found
