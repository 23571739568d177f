"""Models for the clients of OpenAI's API: `callboard serve app.py`, then any of them with the base URL
`http://127.0.0.1:8000/v1`.

None of these is a language model. `repeat` says back what it was told, word by word; `hashing` hashes the words of a
text into a vector, as search engines did before there were networks; `overlap` counts common words.
"""

import time
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

import callboard as cb

DIMENSIONS = 256


@cb.function(openai="chat")
def repeat(messages: list[dict], max_tokens: int = 256, temperature: float = 1.0) -> Iterator[dict | str]:
    """Says the last message again, a word at a time."""
    words = str(messages[-1].get("content") or "").split()
    said = words[:max_tokens]
    for place, word in enumerate(said):
        time.sleep(0.01)
        yield word if place == 0 else " " + word
    reason = "length" if len(said) < len(words) else "stop"
    yield {"finish_reason": reason, "usage": {"prompt_tokens": len(words), "completion_tokens": len(said)}}


@cb.function(openai="embed", contract="pure")
@cb.batched(max_batch_size=64)
def hashing(texts: list[str]) -> NDArray[np.float32]:
    """Hashes words into a vector of length one."""
    vectors = np.zeros((len(texts), DIMENSIONS), np.float32)
    for vector, text in zip(vectors, texts, strict=True):
        for word in text.lower().split():
            code = zlib.crc32(word.encode())
            vector[code % DIMENSIONS] += 1 if code & 1 << 20 else -1
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


@cb.function(openai="rerank", contract="pure")
def overlap(query: str, document: str) -> float:
    """The share of the words of the query that the document has."""
    asked = set(query.lower().split())
    return len(asked & set(document.lower().split())) / max(len(asked), 1)
