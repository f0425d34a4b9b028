"""What a validation library says, in the words of this project: what was expected, what came."""

PREFIXES = {"Value error, ": "", "Input should be ": "expected "}


def plain(message: str) -> str:
    """A message of pydantic's without its own vocabulary."""
    for prefix, word in PREFIXES.items():
        if message.startswith(prefix):
            return word + message.removeprefix(prefix)
    return message
