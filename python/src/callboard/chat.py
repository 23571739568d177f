"""Messages, options and replies of a chat, as types for routes with `openai="chat"`.

    import callboard as cb
    from callboard.chat import Message, Options, Reply, Usage

    @cb.function(openai="chat")
    def answer(messages: list[Message], extra: Options = Options()) -> Reply:
        said = model(messages[-1].text, temperature=extra.temperature or 1.0)
        return Reply(content=said, usage=Usage(prompt_tokens=7, completion_tokens=5))

A route that streams yields texts, and replies where it has more to say. Fields that a type does not name are ignored;
a parameter of their name, or `extra: dict`, gets them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

__all__ = ["Function", "FunctionCall", "Message", "Options", "Reply", "Tool", "ToolCall", "Usage"]


class FunctionCall(msgspec.Struct):
    """What a model calls: the name of a function, and its arguments as the text of a JSON object, also in pieces."""

    name: str = ""
    arguments: str = ""

    def read(self) -> Any:
        """The arguments as a value; of none an empty object. Raises `ValueError` for a text that is not JSON."""
        return msgspec.json.decode(self.arguments or "{}")


class ToolCall(msgspec.Struct):
    """The use of a tool. In a stream a piece with an `id` begins the next call, and one without continues the last."""

    id: str = ""
    type: str = "function"
    function: FunctionCall = msgspec.field(default_factory=FunctionCall)
    index: int | None = None


class Message(msgspec.Struct):
    """A message of a conversation. `content` is a text, parts such as pictures, or nothing beside tool calls."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    # Of a message of the role `tool`: the call that it answers.
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The text of the message, without other parts."""
        if isinstance(self.content, list):
            return "\n".join(str(part.get("text", "")) for part in self.content if part.get("type") == "text")
        return self.content or ""


class Function(msgspec.Struct):
    """A function that a model may call, with the JSON Schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """A tool that a model may use."""

    function: Function
    type: str = "function"


class Options(msgspec.Struct, frozen=True):
    """What a client asks for beside the messages; None where it says nothing. As the parameter `extra` of a route."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens of the answer, by either of its two names."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class Usage(msgspec.Struct):
    """Counted tokens; None where nobody counted."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Reply(msgspec.Struct):
    """An answer, or a piece of a streamed one. The last piece may have `finish_reason` and `usage` alone."""

    content: str | None = None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"] | None = None
    tool_calls: list[ToolCall] | None = None
    usage: Usage | None = None
    logprobs: Any = None
    reasoning_content: str | None = None
    refusal: str | None = None
