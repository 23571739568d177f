"""Anthropic's library against the chat of examples/openai, and against models in trouble."""

import sys

import anthropic

example, trouble, runs = sys.argv[1:4]
HELLO = [{"role": "user", "content": "one two three"}]


def whole_and_streamed(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="repeat", max_tokens=64, messages=HELLO, system="Be brief.")
    text = message.content[0].text
    assert "one two three" in text and message.stop_reason == "end_turn", message
    assert message.id.startswith("msg_") and message.usage.output_tokens > 0 and message._request_id, message
    with client.messages.stream(model="repeat", max_tokens=64, messages=HELLO) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert streamed == text and final.content[0].text == text and final.stop_reason == "end_turn", final
    assert final.usage.output_tokens == message.usage.output_tokens, final
    stopped = client.messages.create(model="repeat", max_tokens=64, messages=HELLO, stop_sequences=["two"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "two"), stopped


def tools(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"name": "weather", "description": "of a city", "input_schema": schema}]
    message = client.messages.create(model="tools", max_tokens=64, messages=HELLO, tools=tools)
    used = message.content[0]
    assert (used.type, used.name, used.input, message.stop_reason) == ("tool_use", "weather", {"city": "Rome"}, "tool_use")
    with client.messages.stream(model="tools", max_tokens=64, messages=HELLO, tools=tools) as stream:
        final = stream.get_final_message()
    assert final.content[0].input == {"city": "Rome"} and final.stop_reason == "tool_use", final


def failures(client: anthropic.Anthropic) -> None:
    try:
        client.messages.create(model="absent", max_tokens=1, messages=HELLO)
        raise AssertionError("it answered")
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error", error.body
    try:
        client.messages.create(model="fails", max_tokens=1, messages=HELLO)
        raise AssertionError("it answered")
    except anthropic.InternalServerError as error:
        assert "the model is broken" in error.message, error
    with open(runs, encoding="utf-8") as file:
        assert file.read().split() == ["fails"], "an at-most-once call ran twice"
    try:
        with client.messages.stream(model="breaks", max_tokens=1, messages=HELLO) as stream:
            list(stream)
        raise AssertionError("it ended silently")
    except anthropic.APIStatusError as error:
        assert "the model is broken" in str(error), error


whole_and_streamed(anthropic.Anthropic(base_url=example, api_key="none"))
print("chat")
client = anthropic.Anthropic(base_url=trouble, api_key="none", max_retries=2)
tools(client)
print("tools")
failures(client)
print("failures")
