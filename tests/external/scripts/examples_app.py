"""A route of each kind, for the programs that `callboard examples` prints."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

import callboard as cb


@cb.function(openai="chat")
def repeat(messages: list[dict], max_tokens: int) -> Iterator[str]:
    """Says the first words of the last message again."""
    for word in messages[-1].get("content", "nothing said").split()[:max_tokens]:
        yield word


@cb.function(openai="chat", examples=[{"messages": [{"role": "user", "content": "What?"}], "mood": "good"}])
def answer(messages: list[dict], mood: str) -> str:
    """Answers with what was asked, and a mood."""
    return f"{messages[-1]['content']} {mood}"


@cb.function(openai="complete")
def go_on(prompt: str) -> str:
    """Adds to a text."""
    return prompt + " and so on"


@cb.function(openai="embed")
def lengths(text: str) -> NDArray[np.float32]:
    """The letters and the words of a text."""
    return np.array([len(text), len(text.split())], np.float32)


@cb.function(openai="rerank")
def overlap(query: str, document: str) -> float:
    """The count of common words."""
    return len(set(query.split()) & set(document.lower().split()))


@cb.function(openai="moderate")
def is_loud(text: str) -> bool:
    """Tells whether a text is shouted."""
    return text.isupper()


@cb.function(openai="transcribe")
def hear(audio: bytes) -> str:
    """Says how long a recording is."""
    return f"heard {len(audio)} bytes"


@cb.function(openai="speak")
def say(input: str, voice: str) -> bytes:
    """Writes instead of speaking."""
    return f"{voice}: {input}".encode()


@cb.function(openai="image")
def draw(prompt: str) -> bytes:
    """Writes instead of drawing."""
    return prompt.encode()


@cb.function(mcp=True)
def shout(text: str) -> str:
    """Says a text in capitals."""
    return text.upper()


@cb.function(mcp=True)
def count(to: int) -> Iterator[str]:
    """Counts aloud to a number."""
    for number in range(to):
        yield f"number {number}"


@cb.function(mcp=True)
def measure(file: bytes) -> int:
    """The length of a file."""
    return len(file)


@cb.function
def double(number: int) -> int:
    return 2 * number
