"""Models in trouble, for the clients of OpenAI's API."""

import os
import time
from collections.abc import Iterator

import callboard as cb
from callboard.chat import FunctionCall, Message, Options, Reply, ToolCall, Usage

RUNS = os.environ["RUNS"]


def note(word: str) -> None:
    with open(RUNS, "a", encoding="utf-8") as file:
        file.write(word + "\n")


@cb.function(openai="chat")
def fails(messages: list[dict]) -> str:
    note("fails")
    raise RuntimeError("the model is broken")


@cb.function(openai="chat")
def breaks(messages: list[dict]) -> Iterator[str]:
    yield "one "
    raise RuntimeError("the model is broken")


@cb.function(openai="chat")
def endless(messages: list[dict]) -> Iterator[str]:
    try:
        while True:
            yield "word "
            time.sleep(0.005)
    finally:
        note("endless ended")


@cb.function(openai="chat")
def tools(messages: list[dict], tools: list[dict], tool_choice: str = "auto") -> dict:
    name = tools[0]["function"]["name"]
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": '{"city": "Rome"}'}}
    return {"tool_calls": [call], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


@cb.function(openai="chat")
def typed(messages: list[Message], extra: Options = Options()) -> Iterator[Reply | str]:  # noqa: B008
    if extra.tools and messages[-1].role != "tool":
        name = extra.tools[0].function.name
        yield Reply(tool_calls=[ToolCall(id="call_1", function=FunctionCall(name, '{"city"'))])
        yield Reply(tool_calls=[ToolCall(function=FunctionCall(arguments=': "Rome"}'))])
    else:
        yield f"{messages[-1].text} "
        yield Reply(f"at {extra.temperature}", usage=Usage(len(messages), 2))


@cb.function(openai="complete")
def shout(prompt: str, suffix: str = "") -> str:
    return prompt.upper() + suffix


@cb.function(openai="embed", queue=1)
def slow(text: str) -> list[float]:
    time.sleep(0.2)
    return [float(len(text))]


@cb.function(openai="transcribe", aliases=["whisper-1"])
def hear(audio: bytes, language: str = "en", temperature: float = 0.0) -> Iterator[dict | str]:
    yield f"{len(audio)} bytes "
    yield {"text": f"at {temperature}", "language": language, "segments": [{"start": 0, "end": 1.5, "text": "all"}]}


@cb.function(openai="transcribe")
def listen(sound: bytes) -> str:
    return f"{len(sound)} bytes"


@cb.function(openai="speak")
def say(input: str, voice: str) -> Iterator[bytes]:
    yield b"RIFF\0\0\0\0WAVEfmt "
    yield f"{voice}: {input}".encode()


@cb.function(openai="image")
def draw(prompt: str, size: str = "1x1") -> bytes:
    return b"\x89PNG\r\n\x1a\n" + f"{prompt} {size}".encode()


@cb.function(openai="rerank")
def shaky(query: str, document: str) -> float:
    note("shaky")
    if document == "broken":
        raise RuntimeError("the model is broken")
    return float(len(set(query.split()) & set(document.split())))


@cb.function(openai="moderate")
def rude(text: str) -> dict:
    return {"categories": {"harassment": "rude" in text}, "category_scores": {"harassment": float("rude" in text)}}
