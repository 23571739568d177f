"""Types of a chat: what a route takes and says with them. `tests/external` calls one by other people's clients."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

import callboard as cb
from callboard.chat import FunctionCall, Message, Options, Reply, Tool, ToolCall, Usage


@cb.function(openai="chat")
def answer(messages: list[Message], extra: Options = Options()) -> Reply:  # noqa: B008
    if extra.tools:
        call = ToolCall(id="a", function=FunctionCall(extra.tools[0].function.name, '{"x": 1}'))
        return Reply(tool_calls=[call])
    said = f"{messages[-1].role}: {messages[-1].text} at {extra.temperature} within {extra.limit}"
    return Reply(said, usage=Usage(prompt_tokens=len(messages)))


def set_in(value: Any) -> Any:
    """The same without what is None."""
    if isinstance(value, dict):
        return {name: set_in(part) for name, part in value.items() if part is not None}
    return [set_in(part) for part in value] if isinstance(value, list) else value


def test_a_route_takes_and_answers_types() -> None:
    with cb.test_client(answer) as client:
        parts = [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
        messages = [{"role": "system", "content": None}, {"role": "user", "content": parts, "unknown": 1}]
        said = client.call({"messages": messages, "extra": {"temperature": 0.5, "max_tokens": 7, "n": 2}})
        assert set_in(said) == {"content": "user: hi at 0.5 within 7", "usage": {"prompt_tokens": 2}}
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        said = client.call({"messages": messages, "extra": {"tools": [tool]}})
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
        assert set_in(said) == {"tool_calls": [call]}


def test_arguments_of_a_call_are_read() -> None:
    assert FunctionCall("f", '{"x": [1]}').read() == {"x": [1]}
    assert FunctionCall("f").read() == {}
    with pytest.raises(ValueError, match="truncated"):
        FunctionCall("f", "{").read()


def test_a_text_of_a_message_is_that_of_its_parts() -> None:
    assert Message("user", "a").text == "a"
    assert Message("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]).text == "a\nb"
    assert Message("assistant").text == ""


def test_a_tool_keeps_its_schema() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert set_in(msgspec.to_builtins(msgspec.convert(tool, Tool))) == tool


def test_the_module_is_there_without_an_import_of_its_own() -> None:
    code = "import callboard as cb; assert cb.chat.Message.__module__ == 'callboard.chat'"
    subprocess.run([sys.executable, "-c", code], check=True)
