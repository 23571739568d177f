"""Calls of a client: values, types, options and arguments, against a server that does what a test says."""

from __future__ import annotations

import dataclasses
import io
from typing import TypedDict

import msgspec
import numpy as np
import pytest
from http_node import Node, echo

from callboard import Client
from callboard._envelope import decode
from callboard.client import InvalidOutputError, Prepared

TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


@dataclasses.dataclass
class Point:
    x: int
    y: float


class Label(msgspec.Struct):
    name: str


class Row(TypedDict):
    n: int


def test_outputs_have_the_type_of_the_hint() -> None:
    with Node(echo) as node, Client(node.url) as client:
        assert client.call("/echo", {"x": 1, "y": 2.0}, returns=Point) == Point(1, 2.0)
        assert client.call("echo", Label("a"), returns=Label) == Label("a")
        assert client.call("/echo", {"n": 1}, returns=Row) == {"n": 1}
        assert client.call("/echo", np.ones(2, np.float32), returns=np.ndarray).dtype == np.float32
        assert client.call("/echo", (1, 2.0)) == (1, 2.0)
        file = io.BytesIO(b"abc")
        assert file.read(1) == b"a"
        assert client.call("/echo", file) == b"abc" and file.tell() == 1
        assert client.call("/echo", [file], returns=list[io.BytesIO])[0].getvalue() == b"abc"
        with pytest.raises(InvalidOutputError, match=r"Expected `BytesIO`, got `int` - at `\$\[0\]`"):
            client.call("/echo", [1], returns=list[io.BytesIO])
        assert client.with_options(returns=list[Label]).call("/echo", [{"name": "b"}]) == [Label("b")]


def test_a_request_says_what_the_options_say() -> None:
    with Node(echo) as node:
        client = Client(node.url + "/below/", api_key="key", timeout=5, headers={"X-More": "1"})
        client.call("/ä/b", 1, priority="low", request_id="id-1", traceparent=TRACE, timeout="200ms", session="zoë 1")
        client.with_options(priority="high").send("math/scale", 3.0, factor=2)
        first, second = node.requests
        assert first.path == "/below/%C3%A4/b"
        told = {name: first.headers[name] for name in ("authorization", "x-more", "x-request-id", "traceparent")}
        assert told == {"authorization": "Bearer key", "x-more": "1", "x-request-id": "id-1", "traceparent": TRACE}
        assert 100 < int(first.headers["x-request-timeout-ms"]) <= 200
        assert (first.headers["x-request-priority"], second.headers["x-request-priority"]) == ("low", "high")
        assert first.headers["x-callboard-session"] == "zoë 1"
        assert "x-callboard-session" not in second.headers
        assert 4900 < int(second.headers["x-request-timeout-ms"]) <= 5000
        assert second.path == "/below/v1/call/math/scale"
        assert decode(second.body) == {"args": [3.0], "kwargs": {"factor": 2}}


def test_mistakes_are_found_before_anything_is_sent() -> None:
    with Node(echo) as node, Client(node.url) as client:
        with pytest.raises(TypeError, match=r"`object` cannot be sent at \$\.a\[1\]"):
            client.call("/echo", {"a": [1, object()]})
        with pytest.raises(TypeError, match="did you mean 'timeout'"):
            client.call("/echo", 1, timout=3)  # type: ignore[call-overload]
        for wrong_session in ("a\nb", " a", "é" * 65):
            with pytest.raises(ValueError, match=r"session=.* at most 128 bytes on one line"):
                client.call("/echo", 1, session=wrong_session)
        for call in (client.call, client.replies, client.stream):
            for wrong in ("int", 3, [int]):
                with pytest.raises(TypeError, match=r"returns=.* is not supported"):
                    call("/echo", [1], returns=wrong)
        with pytest.raises(TypeError, match="returns='int'"):
            client.with_options(returns="int")
        assert node.requests == []


def test_a_prepared_call_is_made_more_than_once() -> None:
    with Node(echo) as node, Client(node.url) as client:
        prepared = client.prepare("/echo", np.arange(100_000))
        for _ in range(2):
            assert client.call_prepared(prepared).sum() == np.arange(100_000).sum()
        assert client.call_prepared(Prepared.send("f", 1)) == {"args": [1], "kwargs": {}}


def test_quic_says_how_to_get_it() -> None:
    try:
        import callboard.client.quic  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(ImportError, match=r"quic:// needs callboard._native: a wheel has it"):
            Client("quic://localhost:4433")
