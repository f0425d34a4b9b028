"""Conversations as prompts: the checkpoint's own template, and names of control tokens as text."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from serving.chat_template import InvalidConversation
from serving.text import TextCodec

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}"
    "<|im_end|>{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{{ '<|im_start|>assistant\\n' }}"
)
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="session")
def chatty(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that knows ChatML."""
    folder = tmp_path_factory.mktemp("chatty") / "model"
    shutil.copytree(checkpoint, folder)
    path = str(folder / "tokenizer.json")
    tokenizer: Any = Tokenizer.from_file(path)
    marks = ("<s>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    tokenizer.save(path)
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 7]}')
    return folder


@pytest.fixture(scope="session")
def codec(chatty: Path) -> TextCodec:
    return TextCodec(chatty)


def test_a_conversation_is_the_template_with_its_control_tokens(codec: TextCodec) -> None:
    tokenizer = codec.tokenizer
    ids = codec.encode_chat(HELLO, None)
    expected = "<s><|im_start|>user\nhello<|im_end|><|im_start|>assistant\n"
    assert list(ids) == tokenizer.encode(expected, add_special_tokens=False).ids
    assert ids[0] == tokenizer.token_to_id("<s>")
    assert set(codec.chat_end_ids()) == {0, 7, tokenizer.token_to_id("<|im_end|>")}


@given(content=st.lists(
    st.sampled_from(["<|im_end|>", "<|im_start|>", "<s>", "<|silence|>", "a", "\n", "<|im_"])
    | st.characters(codec="utf-8") | st.characters(min_codepoint=0x100000, codec="utf-8"),
    max_size=8,
).map("".join))  # fmt: skip
def test_control_tokens_that_a_user_types_stay_text(codec: TextCodec, content: str) -> None:
    written = f"x{content}x"
    ids = codec.encode_chat([{"role": "user", "content": written}], None)
    special = {
        i for i, token in codec.tokenizer.get_added_tokens_decoder().items() if token.special
    }
    names = ["<s>", "<|im_start|>", "<|im_end|>", "<|im_start|>"]
    assert [codec.tokenizer.id_to_token(i) for i in ids if i in special] == names
    text = codec.tokenizer.decode(list(ids), skip_special_tokens=False)
    assert text == f"<s><|im_start|>user\n{written}<|im_end|><|im_start|>assistant\n"


def test_tools_are_no_way_to_control_tokens_either(codec: TextCodec) -> None:
    tool = {"function": {"name": "f", "description": "<|im_end|>"}}
    ids = codec.encode_chat(HELLO, [tool])
    assert ids.count(codec.token_id("<|im_end|>") or -1) == 1
    assert "<|im_end|>" in codec.tokenizer.decode(list(ids))  # special tokens are left out


def test_a_file_of_its_own_goes_before_the_configuration(chatty: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(chatty, tmp_path / "m")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    codec = TextCodec(folder)
    assert codec.tokenizer.decode(list(codec.encode_chat(HELLO, None))) == "hello!"
    assert codec.chat_template.digest != TextCodec(chatty).chat_template.digest
    assert codec.chat_template.stop == ()


def test_of_several_templates_the_one_for_tools_is_taken(chatty: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(chatty, tmp_path / "m")
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert TextCodec(folder).chat_template.render(HELLO, None) == "b"


def test_without_a_template_there_is_a_plain_one_with_an_end(checkpoint: Path) -> None:
    codec = TextCodec(checkpoint)
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    messages = [{"role": "system", "content": "Be kind."}, *HELLO,
                {"role": "assistant", "content": "", "tool_calls": [call]}]  # fmt: skip
    text = codec.chat_template.render(messages, None)
    assert text == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
        '<|im_start|>assistant\n\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    assert codec.chat_template.stop == ("<|im_end|>",)
    with_tools = codec.chat_template.render(messages, [{"function": {"name": "f"}}])
    assert with_tools.startswith("<|im_start|>system\nBe kind.\n\nCall a function")
    assert with_tools.count("Be kind.") == 1
    assert '{"name": "f"}\n<|im_end|>' in with_tools


@pytest.mark.parametrize(
    ("template", "words"),
    [("{{ raise_exception('no such role') }}", "no such role"), ("{% if %}", "Expected"),
     ("{{ messages[0].content + 1 }}", "str"), ("{{ messages[9].content.x }}", "no element")],
)  # fmt: skip
def test_what_a_template_cannot_write_is_said_in_its_words(
    chatty: Path, tmp_path: Path, template: str, words: str
) -> None:
    folder = shutil.copytree(chatty, tmp_path / "m")
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(InvalidConversation, match=words):
        TextCodec(folder).encode_chat(HELLO, None)


def test_templates_run_in_a_sandbox(chatty: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(chatty, tmp_path / "m")
    (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(InvalidConversation, match="unsafe"):
        TextCodec(folder).encode_chat(HELLO, None)


def test_the_bytes_of_tokens_join_to_the_text(codec: TextCodec) -> None:
    ids = codec.encode("naïve €<|im_end|>")
    joined = b"".join(codec.token_bytes(token) for token in ids)
    assert joined == "naïve €<|im_end|>".encode()
