"""The chat template of a checkpoint folder, rendered in transformers' own sandbox."""

import json
from pathlib import Path
from typing import Any

from blake3 import blake3

CHECKPOINT_TEMPLATE = "chat_template.jinja"
DEFAULT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
DEFAULT_END = "<|im_end|>"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class InvalidConversation(ValueError):
    """The template cannot write these messages, in its own words."""


class ChatTemplate:
    """Writes conversations as the model was trained to read them.

    A folder without a template gets a plain default one, whose end mark also ends replies.
    """

    def __init__(self, folder: Path) -> None:
        config = _read_json(folder / "tokenizer_config.json")
        self._source = _own_template(folder, config) or DEFAULT_TEMPLATE.read_text()
        self.is_default = self._source == DEFAULT_TEMPLATE.read_text()
        self.digest = blake3(self._source.encode()).hexdigest()[:32]
        self._special = {
            name: content for name in SPECIAL_TOKENS if (content := _content(config.get(name)))
        }
        end = self._special.get("eos_token")
        self.end_tokens = tuple(filter(None, (end, DEFAULT_END if self.is_default else None)))
        ids = _read_json(folder / "generation_config.json").get("eos_token_id")
        self.end_ids = tuple(ids if isinstance(ids, list) else [] if ids is None else [ids])

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a reply: the default template's mark, which is seldom a token."""
        return (DEFAULT_END,) if self.is_default else ()

    def render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        """The text of a prompt for the next assistant message. Raises `InvalidConversation`."""
        from jinja2 import TemplateError  # after the start: most nodes never chat
        from transformers.utils.chat_template_utils import render_jinja_template

        variables: dict[str, Any] = {"tools": tools}
        variables.update(self._special)
        try:
            rendered: Any = render_jinja_template(
                [messages], chat_template=self._source, add_generation_prompt=True, **variables
            )
            text = str(rendered[0][0])
            text.encode()
        # A template is a program, and its errors with odd messages are Python's own.
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError,
                AttributeError, RecursionError) as error:  # fmt: skip
            raise InvalidConversation(str(error) or type(error).__name__) from error
        return text


def _own_template(folder: Path, config: dict[str, Any]) -> str | None:
    """Of its own file, as transformers saves it now, else of the tokenizer's configuration."""
    path = folder / CHECKPOINT_TEMPLATE
    if path.is_file():
        return path.read_text()
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("tool_use") or named.get("default")
    return template if isinstance(template, str) else None


def _content(token: object) -> str | None:
    """A special token as the configuration writes it: its text, or an object around it."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    loaded = json.loads(path.read_text())
    return loaded if isinstance(loaded, dict) else {}
