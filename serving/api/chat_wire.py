"""`POST /v1/chat/completions`: the body, and its messages as chat templates expect them."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, model_validator

from serving.api.wire import GenerationBody, Text

ToolName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
ToolChoiceMode = Literal["none", "auto", "required"]


def _only(expected: str, why: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if value != expected:
            raise ValueError(f"expected {expected!r}: {why}")
        return value

    return BeforeValidator(check)


class TextPart(BaseModel):
    type: Annotated[Literal["text"], _only("text", "this model reads nothing but text")]
    text: Text


Content = Text | list[TextPart]


class SystemMessage(BaseModel):
    role: Literal["system", "developer"]
    content: Content


class UserMessage(BaseModel):
    role: Literal["user"]
    content: Content
    name: Text | None = None


class CalledFunction(BaseModel):
    name: Text
    arguments: Text = "{}"


class AssistantToolCall(BaseModel):
    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: list[AssistantToolCall] | None = None


class ToolMessage(BaseModel):
    role: Literal["tool"]
    content: Content
    tool_call_id: Text


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


class Function(BaseModel):
    name: ToolName
    description: Text | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    type: Annotated[Literal["function"], _only("function", "other tools are not served")]
    function: Function


class NamedFunction(BaseModel):
    name: ToolName


class NamedToolChoice(BaseModel):
    type: Literal["function"]
    function: NamedFunction


class ResponseFormat(BaseModel):
    type: Annotated[
        Literal["text"],
        _only("text", "the torch engine cannot bind replies to a schema, the vLLM engine can"),
    ] = "text"


class ChatBody(GenerationBody):
    """The fields of OpenAI's reference that this engine serves."""

    messages: list[Message] = Field(min_length=1, max_length=4096)
    tools: list[Tool] = Field(default=[], max_length=128)
    tool_choice: ToolChoiceMode | NamedToolChoice = "auto"
    parallel_tool_calls: bool = True
    max_completion_tokens: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    """The older name; None in both: as many as fit."""
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)
    response_format: ResponseFormat = ResponseFormat()
    modalities: list[
        Annotated[Literal["text"], _only("text", "this model writes nothing but text")]
    ] = []

    @model_validator(mode="before")
    @classmethod
    def _nothing_older(cls, body: Any) -> Any:
        if isinstance(body, dict) and (body.get("functions") or body.get("function_call")):
            raise ValueError("functions and function_call: expected their successors, tools and "
                             "tool_choice")  # fmt: skip
        return body

    @model_validator(mode="after")
    def _consistent(self) -> "ChatBody":
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: expected only with logprobs: true")
        if "tool_choice" not in self.model_fields_set or self.tool_choice == "none":
            return self
        names = sorted(tool.function.name for tool in self.tools)
        if not names:
            raise ValueError("tool_choice: expected only with tools")
        if self.forced_tool is not None and self.forced_tool not in names:
            raise ValueError(f"tool_choice: expected one of {names}, got {self.forced_tool!r}")
        return self

    @property
    def offered_tools(self) -> list[Tool]:
        """Empty where the choice is that none is called: the surest way."""
        return [] if self.tool_choice == "none" else self.tools

    @property
    def forced_tool(self) -> str | None:
        choice = self.tool_choice
        return choice.function.name if isinstance(choice, NamedToolChoice) else None


def template_messages(body: ChatBody) -> list[dict[str, Any]]:
    """As templates expect them: text for content, objects for the arguments of calls."""
    return [_template_message(message) for message in body.messages]


def _template_message(message: Message) -> dict[str, Any]:
    written = message.model_dump(exclude_none=True)
    content = message.content
    if isinstance(content, list):
        content = "\n".join(part.text for part in content)
    written["content"] = content or ""
    if written["role"] == "developer":  # newer than most templates
        written["role"] = "system"
    for call in written.get("tool_calls", ()):
        call["function"]["arguments"] = _arguments(call["function"]["arguments"])
    return written


def _arguments(text: str) -> Any:
    """An object where it is one: what a model once wrote wrongly stays as it was."""
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text


def template_tools(body: ChatBody) -> list[dict[str, Any]] | None:
    return [tool.model_dump(exclude_none=True) for tool in body.offered_tools] or None
