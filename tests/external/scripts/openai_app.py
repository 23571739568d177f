"""Models in trouble, for the clients of OpenAI's API."""

import os
import time
from collections.abc import Iterator

import callboard as cb

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


@cb.function(openai="complete")
def shout(prompt: str, suffix: str = "") -> str:
    return prompt.upper() + suffix


@cb.function(openai="embed", queue=1)
def slow(text: str) -> list[float]:
    time.sleep(0.2)
    return [float(len(text))]


@cb.function(openai="moderate")
def rude(text: str) -> dict:
    return {"categories": {"harassment": "rude" in text}, "category_scores": {"harassment": float("rude" in text)}}
