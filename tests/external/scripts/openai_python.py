"""OpenAI's own client against two servers: the example, and models in trouble. Arguments: both base URLs, and the file
in which the models note what ran."""

import asyncio
import base64
import pathlib
import sys
import time

import httpx2
import openai

example, trouble, runs = sys.argv[1:]
HELLO = [{"role": "user", "content": "one two three"}]


def noted(word):
    return pathlib.Path(runs).read_text(encoding="utf-8").count(word)


def models(client):
    assert [model.id for model in client.models.list()] == ["repeat", "hashing", "overlap"]
    assert client.models.retrieve("repeat").owned_by == "callboard"


def chat(client):
    whole = client.chat.completions.create(model="repeat", messages=HELLO, n=3, max_tokens=2)
    assert [choice.message.content for choice in whole.choices] == ["one two"] * 3
    assert {choice.finish_reason for choice in whole.choices} == {"length"}
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 6)
    assert whole._request_id
    stopped = client.chat.completions.create(model="repeat", messages=HELLO, stop=" t")
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("one", "stop")


def streams(client):
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="repeat", messages=HELLO, stream=True, stream_options=options))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert pieces == ["one", " two", " three", None], pieces
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None, None, None, "stop"]
    assert chunks[-1].usage.total_tokens == 6


def embeddings(client):
    # Without a format the client asks for base64.
    packed = client.embeddings.create(model="hashing", input=["one two", "three"])
    plain = client.embeddings.create(model="hashing", input=["one two", "three"], encoding_format="float")
    assert len(packed.data) == 2 and len(packed.data[0].embedding) == 256
    for one, other in zip(packed.data, plain.data, strict=True):
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 1e-6


def refused(client):
    for arguments, kind, code in (
        ({"model": "absent", "messages": HELLO}, openai.NotFoundError, "model_not_found"),
        ({"model": "hashing", "messages": HELLO}, openai.NotFoundError, "model_not_found"),
        ({"model": "repeat", "messages": []}, openai.BadRequestError, "invalid_value"),
    ):
        try:
            client.chat.completions.create(**arguments)
        except kind as error:
            assert error.code == code, error.code
        else:
            raise AssertionError(arguments)


def failures(client):
    """A call that may have run is not repeated, though the client repeats every 5xx by itself."""
    try:
        client.chat.completions.create(model="fails", messages=HELLO)
    except openai.InternalServerError as error:
        assert "the model is broken" in error.message and error.code == "RuntimeError", error
    assert noted("fails") == 1
    heard = []
    try:
        for chunk in client.chat.completions.create(model="breaks", messages=HELLO, stream=True):
            heard.append(chunk.choices[0].delta.content)
    except openai.APIError as error:
        assert "the model is broken" in error.message
    else:
        raise AssertionError("the stream ended as if nothing had happened")
    assert heard == ["one "]


def cancelled(client):
    with client.chat.completions.create(model="endless", messages=HELLO, stream=True) as chunks:
        next(iter(chunks))
    until = time.monotonic() + 30
    while not noted("endless ended"):
        assert time.monotonic() < until
        time.sleep(0.01)


def tool_calls(client):
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    choice = client.chat.completions.create(model="tools", messages=HELLO, tools=[tool]).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert choice.message.tool_calls[0].function.arguments == '{"city": "Rome"}'
    chunks = client.chat.completions.create(model="tools", messages=HELLO, tools=[tool], stream=True)
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [(call.index, call.function.name) for call in calls] == [(0, "weather")]


def typed(client):
    """Types of the package for messages, options, replies and tool calls."""
    asked = client.chat.completions.create(model="typed", messages=HELLO, temperature=0.5)
    assert asked.choices[0].message.content == "one two three at 0.5" and asked.usage.total_tokens == 3, asked
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    message = client.chat.completions.create(model="typed", messages=HELLO, tools=[tool]).choices[0].message
    [call] = message.tool_calls
    assert (call.id, call.function.name, call.function.arguments) == ("call_1", "weather", '{"city": "Rome"}'), call
    answers = [*HELLO, message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    with client.chat.completions.stream(model="typed", messages=answers, tools=[tool]) as stream:
        assert stream.get_final_completion().choices[0].message.content == "sunny at None"


def others(client):
    several = client.completions.create(model="shout", prompt=["a", "b"], suffix="!")
    assert [choice.text for choice in several.choices] == ["A!", "B!"]
    verdict = client.moderations.create(model="rude", input=["kind", "rude"])
    assert [result.flagged for result in verdict.results] == [False, True]


def responses(client):
    whole = client.responses.create(model="repeat", input="one two three", max_output_tokens=2)
    assert (whole.output_text, whole.status, whole.usage.total_tokens) == ("one two", "incomplete", 5), whole
    assert whole.incomplete_details.reason == "max_output_tokens" and whole.id.startswith("resp_")
    items = [{"role": "user", "content": "no"}, *whole.output, {"role": "user", "content": "four five"}]
    with client.responses.stream(model="repeat", input=items, instructions="be kind") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == ["four", " five"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (final.output_text, final.status, final.usage.output_tokens) == ("four five", "completed", 2), final
    try:
        client.responses.create(model="repeat", input="more", previous_response_id=whole.id)
    except openai.BadRequestError as error:
        assert "nothing is kept" in error.message and error.code == "invalid_value", error
    else:
        raise AssertionError("nothing is kept")


def responses_in_trouble(client):
    before = noted("fails")
    try:
        client.responses.create(model="fails", input="hi")
    except openai.InternalServerError as error:
        assert "the model is broken" in error.message, error
    assert noted("fails") == before + 1
    events = list(client.responses.create(model="breaks", input="hi", stream=True))
    assert events[-1].type == "response.failed" and events[-1].response.output_text == "one ", events[-1]
    assert "the model is broken" in events[-1].response.error.message
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
    whole = client.responses.create(model="tools", input="hi", tools=[tool], tool_choice="required")
    [call] = whole.output
    assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city": "Rome"}'), call
    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "9"}
    items = [{"role": "user", "content": "hi"}, call, answer]
    with client.responses.stream(model="tools", input=items, tools=[tool]) as stream:
        assert stream.get_final_response().output[0].arguments == '{"city": "Rome"}'


def recordings(client):
    recording = ("a.wav", b"RIFF" + bytes(100))
    for model in ("hear", "whisper-1"):
        heard = client.audio.transcriptions.create(model=model, file=recording, temperature=0.5)
        assert heard.text == "104 bytes at 0.5", heard
    verbose = client.audio.transcriptions.create(
        model="hear", file=recording, response_format="verbose_json", language="de", timestamp_granularities=["segment"]
    )
    assert (verbose.language, verbose.segments[0].text, verbose.segments[0].end) == ("de", "all", 1.5), verbose
    for form, part in (
        ("text", "104 bytes at 0.0"),
        ("srt", "1\n00:00:00,000 --> 00:00:01,500\n"),
        ("vtt", "WEBVTT\n"),
    ):
        assert part in client.audio.transcriptions.create(model="hear", file=recording, response_format=form), form
    events = list(client.audio.transcriptions.create(model="hear", file=recording, stream=True))
    kinds = [event.type for event in events]
    assert kinds == ["transcript.text.delta", "transcript.text.delta", "transcript.text.done"], kinds
    assert events[-1].text == "104 bytes at 0.0"
    assert client.audio.transcriptions.create(model="listen", file=recording).text == "104 bytes"


def speech(client):
    said = client.audio.speech.create(model="say", input="hi", voice="alloy", response_format="wav")
    assert said.content.endswith(b"WAVEfmt alloy: hi") and said.response.headers["content-type"] == "audio/wav", said
    with client.audio.speech.with_streaming_response.create(model="say", input="hi", voice="alloy") as answer:
        assert b"".join(answer.iter_bytes()).endswith(b"alloy: hi")


def pictures(client):
    drawn = client.images.generate(model="draw", prompt="a cat", n=2, size="256x256").data
    assert [base64.b64decode(one.b64_json)[8:] for one in drawn] == [b"a cat 256x256"] * 2
    drawn = client.images.generate(model="draw", prompt="a cat", response_format="url").data
    assert drawn[0].url.startswith("data:image/png;base64,"), drawn


async def overload(base):
    """A full queue is 429, which the client waits for and repeats: all are answered in the end."""
    statuses = []

    async def note_status(response):
        statuses.append(response.status_code)

    http_client = httpx2.AsyncClient(event_hooks={"response": [note_status]})
    client = openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=10, http_client=http_client)
    calls = [
        client.embeddings.create(model="slow", input="x" * length, encoding_format="float") for length in range(1, 7)
    ]
    lengths = [answer.data[0].embedding[0] for answer in await asyncio.gather(*calls)]
    assert lengths == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert 429 in statuses, statuses


client = openai.OpenAI(base_url=example, api_key="none")
for part in (models, chat, streams, embeddings, refused, responses):
    part(client)
    print(part.__name__)
client = openai.OpenAI(base_url=trouble, api_key="none")
for part in (failures, cancelled, tool_calls, typed, others, responses_in_trouble, recordings, speech, pictures):
    part(client)
    print(part.__name__)
asyncio.run(overload(trouble))
print("overload")
