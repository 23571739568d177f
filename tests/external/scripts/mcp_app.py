"""Tools with the names that the conformance suite of the Model Context Protocol asks for, and tools in trouble."""

import os
import time
import zlib
from collections.abc import Iterator
from typing import Any

import callboard as cb

RUNS = os.environ.get("RUNS", os.devnull)
PDF = b"%PDF-1.4 no page"
WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\0\0\0\0"


def note(word: str) -> None:
    with open(RUNS, "a", encoding="utf-8") as file:
        file.write(word + "\n")


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


# One red pixel.
HEADER = (1).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
PNG = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", HEADER) + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")


@cb.function(mcp=True)
def test_simple_text() -> str:
    """Answers a text."""
    return "This is a simple text response for testing."


@cb.function(mcp=True)
def test_image_content() -> bytes:
    """Answers a picture."""
    return PNG


@cb.function(mcp=True)
def test_audio_content() -> bytes:
    """Answers a sound."""
    return WAV


@cb.function(mcp=True)
def test_embedded_resource() -> bytes:
    """Answers a file."""
    return PDF


@cb.function(mcp=True)
def test_multiple_content_types() -> Iterator[Any]:
    """Answers a text, a picture and a file."""
    yield "Multiple content types test:"
    yield PNG
    yield PDF


@cb.function(mcp=True)
def test_error_handling() -> str:
    """Fails."""
    raise RuntimeError("This tool intentionally returns an error for testing")


@cb.function(mcp=True)
def test_tool_with_progress() -> Iterator[Any]:
    """Says how far it is."""
    for progress in (0, 50, 100):
        yield {"progress": progress, "total": 100}
        time.sleep(0.02)
    yield "done"


@cb.function(mcp=True)
def test_streaming_elicitation() -> Iterator[Any]:
    """Streams, and asks its client nothing."""
    yield {"progress": 1}
    yield "done"


@cb.function(mcp=True)
def test_logging_tool() -> str:
    """Logs nothing to its client."""
    return "done"


@cb.function(mcp=True)
def test_noise() -> str:
    """Prints where a host reads messages."""
    note(f"process {os.getpid()}")
    print("no message")
    os.write(1, b"nor this\n")
    return "said"


# The suite calls the first tool that is listed: these are the last.
@cb.function(mcp=True)
def watch_endless() -> Iterator[str]:
    """Never ends by itself."""
    try:
        while True:
            yield "word "
            time.sleep(0.005)
    finally:
        note("endless ended")


@cb.function(mcp=True)
def write_failure() -> str:
    """Fails, once."""
    note("failed")
    raise RuntimeError("the tool is broken")


@cb.function(mcp=True)
def write_order(count: int) -> dict[str, int]:
    """Orders things, once."""
    note("order begun")
    time.sleep(0.3)
    note("order ended")
    return {"count": count}
