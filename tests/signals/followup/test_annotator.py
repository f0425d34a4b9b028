"""The annotator: what users say next, from token ids in a real lake to a class on the log."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from serving.text import TextCodec
from signals.followup.annotator import Annotator
from signals.turns import TurnReader
from tendril.lake import open_lake
from tendril.lake.rows import traces_to_arrow
from tendril.log import LogRecord, MemoryLog, read_all
from tendril.records import Feedback, PolicySpan, Trace, decode
from tendril.settings import LakeSettings, Settings
from tests.builders import make_trace

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ASKED = {"role": "user", "content": "sort the list for me"}
ANSWERED = {"role": "assistant", "content": "Sorted, see below."}
THANKS = {"role": "user", "content": "thanks, that works perfectly"}


@pytest.fixture(params=["control tokens", "plain text"])
def chatty(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint whose template's marks are control tokens, or only text to its tokenizer."""
    folder = shutil.copytree(Settings().serving.checkpoint, tmp_path / "model")
    if request.param == "control tokens":
        tokenizer = TextCodec(folder).tokenizer
        tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
        tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    return folder


class Conversation:
    """Traces of one session, as serving writes them."""

    def __init__(self, folder: Path, lake: Any) -> None:
        self._codec, self._lake, self._num = TextCodec(folder), lake, 0

    def say(self, *messages: dict[str, Any], reply: str = "ok", **overrides: Any) -> Trace:
        prompt = self._codec.encode_chat(list(messages), None)
        ids = self._codec.encode(reply)
        fields: dict[str, Any] = {
            "trace_id": f"t{self._num}", "route": "chat", "content_consent": True,
            "tokenizer_digest": self._codec.digest, "prompt_token_ids": prompt,
            "completion_token_ids": ids, "behavior_logprobs": (-1.0,) * len(ids),
            "token_bytes": (1,) * len(ids), "served_at": time.time() + self._num,
            "policy_spans": (PolicySpan(policy_version=1, num_tokens=len(ids)),),
            "previous_trace_id": f"t{self._num - 1}" if self._num else None, "turn": self._num,
        }  # fmt: skip
        trace = make_trace(**(fields | overrides))
        place = LogRecord("traces", 0, self._num, "s", b"", time.time())
        self._lake.append("traces", traces_to_arrow([trace], [place]), {"a": self._num + 1})
        self._num += 1
        return trace


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(workspace=tmp_path, lake=LakeSettings(root=str(tmp_path / "lake")))


def _events(log: MemoryLog) -> list[Feedback]:
    return [decode(Feedback, record.value) for record in read_all(log, [Feedback.TOPIC])]


def test_a_turn_comes_back_as_it_was_said(chatty: Path, settings: Settings):
    lake = open_lake(settings)
    talk = Conversation(chatty, lake)
    talk.say(ASKED, reply=ANSWERED["content"])
    talk.say(ASKED, ANSWERED, THANKS)
    [turn] = TurnReader(lake, chatty).served(0.0, time.time() + 100)
    assert turn.follow_up == THANKS["content"]
    assert turn.reply == ANSWERED["content"]
    assert turn.request == ASKED["content"]


def test_praise_becomes_an_event_once_and_its_words_stay_where_they_are(
    chatty: Path, settings: Settings, tmp_path: Path
):
    log, lake, path = MemoryLog(), open_lake(settings), tmp_path / "follow_ups.json"
    talk = Conversation(chatty, lake)
    talk.say(ASKED, reply=ANSWERED["content"])
    assert Annotator(log, lake, chatty, path).look() == 0
    talk.say(ASKED, ANSWERED, THANKS)
    assert Annotator(log, lake, chatty, path).look() == 1
    assert Annotator(log, lake, chatty, path).look() == 0
    [event] = _events(log)
    assert (event.trace_id, event.text_ref, event.reason) == ("t0", "t1", "satisfied")
    path.unlink()  # a kill before it was written: the same event again, by the same id
    assert Annotator(log, lake, chatty, path).look() == 1
    assert len({e.event_id for e in _events(log)}) == 1


@pytest.mark.parametrize("refused", ["content_consent", "train_consent"])
def test_without_consent_nothing_is_read(chatty: Path, settings: Settings, refused: str):
    lake = open_lake(settings)
    talk = Conversation(chatty, lake)
    talk.say(ASKED, reply=ANSWERED["content"], **{refused: False})
    talk.say(ASKED, ANSWERED, THANKS)
    assert TurnReader(lake, chatty).served(0.0, time.time() + 100) == []


def test_another_tokenizers_ids_are_left_alone(chatty: Path, settings: Settings):
    lake = open_lake(settings)
    talk = Conversation(chatty, lake)
    talk.say(ASKED, reply=ANSWERED["content"])
    talk.say(ASKED, ANSWERED, THANKS, tokenizer_digest="another")
    assert TurnReader(lake, chatty).served(0.0, time.time() + 100) == []
