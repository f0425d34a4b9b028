"""Redaction: recall by class on planted secrets, false alarms on real prompts and code, speed."""

import ast
import json
import random
import time
import zipfile
from collections import Counter
from collections.abc import Iterator

from benchmarks.data import wheel
from benchmarks.figures import Figure
from benchmarks.planted import CLASSES, planted, recall
from signals.privacy.redaction import PATTERNS, redact

PLANTED = 500
SEED = 1
FORMLESS = ("disguised", "name", "address", "bare_secret")
"""Redaction does not look for these; measured so that nobody thinks it does."""
ROUNDS = 3


def run() -> list[Figure]:
    """Recall needs 0.99 for each class that has a form; speed is set against bare expressions."""
    prompts, code = list(_prompts()), list(_code())
    return [*_recalls(), *_alarms("bfcl prompts", prompts), *_alarms("click functions", code),
            *_speeds(prompts)]  # fmt: skip


def _recalls() -> list[Figure]:
    figures = []
    for label in CLASSES:
        share = recall(label, PLANTED, random.Random(SEED))
        target = None if label in FORMLESS else 0.99
        figures.append(
            Figure(metric=f"recall, {label}", unit="share", ours=share, target=target,
                   ok=None if target is None else share >= target)
        )  # fmt: skip
    return figures


def _alarms(name: str, texts: list[str]) -> list[Figure]:
    """Of texts in which nobody planted anything: real ones hold some real addresses too."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(set(redact(text).counts))
    touched = sum(bool(redact(text).counts) for text in texts)
    shares = [Figure(metric=f"{name}: texts changed", unit="share", ours=touched / len(texts))]
    return shares + [
        Figure(metric=f"{name}: texts with {label}", unit=f"of {len(texts)}", ours=n)
        for label, n in counts.most_common()
    ]


def _speeds(prompts: list[str]) -> list[Figure]:
    """One core. The peer runs the same expressions one after the other and replaces nothing."""
    secrets = [text for label in CLASSES for _, text in planted(label, 60, random.Random(SEED))]
    figures = []
    for name, texts in (("real prompts", prompts), ("texts with secrets", secrets)):
        rounds = [(_messages_per_s(texts), _bare_per_s(texts)) for _ in range(ROUNDS)]
        ours, peer = max(rounds)
        figures.append(
            Figure(metric=f"redact, {name}", unit="texts/s", ours=ours, peer=peer,
                   peer_name="bare expressions", ratio=ours / peer)
        )  # fmt: skip
    return figures


def _messages_per_s(texts: list[str]) -> float:
    start = time.perf_counter()
    for text in texts:
        redact(text)
    return len(texts) / (time.perf_counter() - start)


def _bare_per_s(texts: list[str]) -> float:
    start = time.perf_counter()
    for text in texts:
        for _, pattern, _ in PATTERNS:
            for _ in pattern.finditer(text):
                pass
    return len(texts) / (time.perf_counter() - start)


def _prompts() -> Iterator[str]:
    """What people wrote to real tools, in the user's turns."""
    with wheel("bfcl-eval") as archive:
        for name in archive.namelist():
            if "_live_" in name and name.endswith(".json") and "possible_answer" not in name:
                yield from _turns(archive, name)


def _turns(archive: zipfile.ZipFile, name: str) -> Iterator[str]:
    for line in archive.read(name).decode().splitlines():
        question = json.loads(line).get("question") or []
        for turn in question:
            yield from (m["content"] for m in turn if m["role"] == "user")


def _code() -> Iterator[str]:
    """Functions of a package of today."""
    with wheel("click", "8.2.1") as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                source = archive.read(name).decode()
                for node in ast.walk(ast.parse(source)):
                    if isinstance(node, ast.FunctionDef):
                        yield ast.get_source_segment(source, node) or ""
