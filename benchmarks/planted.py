"""Secrets and personal data of known classes, made up, each inside a sentence."""

import random
import string

from signals.privacy.checksums import is_card
from signals.privacy.redaction import redact

CLASSES = (
    "email", "phone", "card", "iban", "ip_address", "national_id", "aws_key", "github_token",
    "slack_token", "google_key", "stripe_key", "openai_key", "jwt", "private_key",
    "url_credentials", "password", "disguised", "name", "address",
    "bare_secret",
)  # fmt: skip
SENTENCES = (
    "it still fails with {} please look",
    "config:\n  value: {}\n",
    "# TODO remove {} before release",
    "no, use {} instead",
)
ALNUM = string.ascii_letters + string.digits


def planted(label: str, n: int, rng: random.Random) -> list[tuple[str, str]]:
    """`n` pairs of a secret and a text that holds it."""
    pairs = []
    for _ in range(n):
        secret, given = _make(label, rng)
        pairs.append((secret, rng.choice(SENTENCES).format(given)))
    return pairs


def recall(label: str, n: int, rng: random.Random) -> float:
    """Share of planted secrets of which redaction leaves nothing."""
    pairs = planted(label, n, rng)
    return sum(secret not in redact(text).text for secret, text in pairs) / n


def _make(label: str, rng: random.Random) -> tuple[str, str]:
    """The secret, and how it is written."""
    made = _personal(label, rng) or _key(label, rng)
    if made is not None:
        return made, made
    if label == "url_credentials":
        secret = _chars(rng, 10)
        return secret, f"postgres://app:{secret}@db.internal:5432/x"
    if label == "password":
        secret = _chars(rng, 9) + "!7"
        return secret, rng.choice(
            ("password = '{}'", "API_KEY: {}", "secret={}", "pwd: {}")
        ).format(secret)
    if label == "private_key":
        body = "\n".join(_chars(rng, 64) for _ in range(4))
        kind = rng.choice(("RSA ", "EC ", "OPENSSH ", ""))
        return body, f"-----BEGIN {kind}PRIVATE KEY-----\n{body}\n-----END {kind}PRIVATE KEY-----"
    if label == "disguised":  # written so that people understand and patterns do not
        mail = f"{_chars(rng, 6)} (at) {_chars(rng, 5)} dot org"
        phone = "555" + "".join(rng.choice(string.digits) for _ in range(7))
        return (secret := rng.choice((mail, phone, f"my pin {rng.randint(1000, 9999)}"))), secret
    return (secret := _chars(rng, 12)), secret  # bare_secret: no word beside it says what it is


def _personal(label: str, rng: random.Random) -> str | None:
    digits = "".join(rng.choice(string.digits[1:]) for _ in range(20))
    match label:
        case "email":
            return f"{_chars(rng, 6)}.{_chars(rng, 4)}@{_chars(rng, 5)}.example.org"
        case "phone":
            return rng.choice((
                f"+49 1{digits[:2]} {digits[2:9]}", f"+1 {digits[:3]}-{digits[3:6]}-{digits[6:10]}",
                f"({digits[:3]}) {digits[3:6]}-{digits[6:10]}",
                f"0{digits[:3]} {digits[3:6]} {digits[6:10]}",
                f"+33{digits[:9]}",
            ))  # fmt: skip
        case "card":
            prefix = "4" + digits[:14]
            number = next(prefix + d for d in string.digits if is_card(prefix + d))
            return rng.choice((number, " ".join(number[i : i + 4] for i in range(0, 16, 4))))
        case "iban":
            account = digits[:18]
            check = 98 - int(account + "131400") % 97  # D, E as numbers
            return f"DE{check:02}{account}"
        case "ip_address":
            return rng.choice((
                ".".join(str(rng.randint(1, 254)) for _ in range(4)),
                ":".join(f"{rng.randint(4096, 65535):x}" for _ in range(8)),
            ))  # fmt: skip
        case "national_id":
            return f"{rng.randint(100, 599)}-{rng.randint(10, 99)}-{rng.randint(1000, 9999)}"
        case "name":
            return rng.choice(("Ada", "Wei", "Omar")) + " " + rng.choice(("Okafor", "Lindqvist"))
        case "address":
            return f"{rng.randint(1, 99)} Chestnut Lane, Springfield"
    return None


def _key(label: str, rng: random.Random) -> str | None:
    match label:
        case "aws_key":
            return "AKIA" + "".join(rng.choice(string.ascii_uppercase) for _ in range(16))
        case "github_token":
            return rng.choice(("ghp_", "gho_", "ghs_")) + _chars(rng, 36)
        case "slack_token":
            return (
                "xoxb-"
                + "".join(rng.choice(string.digits) for _ in range(12))
                + "-"
                + _chars(rng, 24)
            )
        case "google_key":
            return "AIza" + _chars(rng, 35)
        case "stripe_key":
            return "sk_" + "live_" + _chars(rng, 24)
        case "openai_key":
            return "sk-" + _chars(rng, 20) + "T3Blbk" + "FJ" + _chars(rng, 20)
        case "jwt":
            return f"eyJhbGciOiJIUzI1NiJ9.eyJ{_chars(rng, 20)}.{_chars(rng, 40)}"
    return None


def _chars(rng: random.Random, n: int) -> str:
    return "".join(rng.choice(ALNUM) for _ in range(n))
