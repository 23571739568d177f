"""Errors of a client: a class for each kind, and answers in an unknown format."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from http_node import Node, Request, frames, response, value

from callboard import AsyncClient, CallError, Client
from callboard.client import (
    FailedError,
    InternalError,
    InvalidInputError,
    InvalidOutputError,
    NotFoundError,
    UnavailableError,
)
from callboard.client._http_reply import failure_of_problem
from callboard.client.errors import KINDS, to_error
from callboard.client.transport import Failure, Settings

ERRORS = Path(__file__).parents[2] / "docs/errors.md"


def test_each_kind_has_a_class() -> None:
    for kind, row in KINDS.items():
        raised = to_error(Failure(kind, "m", details={"a": 1}, request_id="r", retry_after=1.5, remote_traceback="t"))
        assert type(raised) is row.error and isinstance(raised, CallError)
        assert (raised.kind, raised.details, raised.request_id) == (kind, {"a": 1}, "r")
        assert (raised.retry_after, raised.remote_traceback, str(raised)) == (1.5, "t", f"{kind}: m")
    assert type(to_error(Failure("of_tomorrow", "m"))) is CallError


@pytest.mark.skipif(not ERRORS.exists(), reason="the table is in the repository only")
def test_kinds_are_those_of_the_table_with_their_status_and_retries() -> None:
    """Over QUIC a node gives a status only if user code has chosen it."""
    row = r"^\| `(\w+)` \| [^|]*?\b([45]\d\d)\b(?!xx)[^|]*\| (yes)?"
    first_table = ERRORS.read_text().split("| failed call |")[0]
    rows = re.findall(row, first_table, re.MULTILINE)
    assert [(kind, bool(yes)) for kind, _, yes in rows] == [(kind, row.is_retryable) for kind, row in KINDS.items()]
    for kind, status, _ in rows:
        assert to_error(Failure(kind, "m")).status_code == int(status)
        assert to_error(Failure(kind, "m", status=418)).status_code == 418
    assert to_error(Failure("of_tomorrow", "m")).status_code is None


@pytest.mark.skipif(not ERRORS.exists(), reason="the table is in the repository only")
def test_each_kind_has_the_class_of_the_table_of_doors() -> None:
    _, table = ERRORS.read_text().split("| failed call |")
    lines = table.split("\n\n")[0].splitlines()[2:]
    classes = {line.split("`")[1]: line.split("`")[-2] for line in lines}
    assert classes == {kind: row.error.__name__ for kind, row in KINDS.items()}


def test_an_error_tells_all_that_the_problem_document_tells() -> None:
    def answer(_: Request) -> bytes:
        text = b"""{"kind": "failed", "message": "ValueError: no", "error_type": "ValueError", "stage": "a > b",
            "details": {"n": [1]}, "remote_trace": "Traceback: line 1", "retryable": false, "request_id": "r-7"}"""
        return response(text, 418, "application/problem+json")

    with Node(answer) as node, Client(node.url) as client, pytest.raises(FailedError) as raised:
        client.call("/echo", 1)
    error = raised.value
    assert (error.kind, error.status_code, error.type, error.stage) == ("failed", 418, "ValueError", "a > b")
    assert (error.details, error.request_id, error.was_started) == ({"n": [1]}, "r-7", True)
    if sys.version_info >= (3, 11):
        assert "Traceback: line 1" in error.__notes__[0]


def test_a_call_of_a_streaming_route_says_how_to_read_it() -> None:
    text = b"""{"kind": "invalid_input", "error_type": "not_acceptable", "message": "no form that `accept` allows is
        available; available: text/event-stream, application/vnd.callboard.envelope-stream"}""".replace(b"\n", b" ")
    with Node(lambda _: response(text, 406, "application/problem+json")) as node, Client(node.url) as client:
        with pytest.raises(InvalidInputError, match="this route answers with a stream: use `replies`") as raised:
            client.call("/count", 3)
        assert raised.value.status_code == 406


@pytest.mark.parametrize("broken", [{}, {"kind": 3, "message": None}, {"details": [1], "status": "x"}])
def test_a_strange_problem_document_is_still_an_error(broken: dict[str, Any]) -> None:
    assert failure_of_problem(broken, 503, None, None).kind == "unavailable"


@pytest.mark.parametrize(
    ("raw", "expected", "words"),
    [
        (response(b"<html>", 200, "text/html"), InternalError, r"unknown format \(text/html\)"),
        (response(b"", 302, "text/html", location="https://b/"), InternalError, "redirects to https://b/"),
        (response(b"no such page", 404, "text/plain"), NotFoundError, "404 .* no such page"),
        (response(b"{", 500, "application/problem+json"), InternalError, "no answer of a node"),
        (response(b"not an envelope, though it says so"), InternalError, "do not begin as an envelope"),
        (response(b"busy", 502, "text/html"), UnavailableError, "502"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", InternalError, "does not answer in HTTP"),
    ],
)
def test_an_answer_in_an_unknown_format_says_what_it_is(raw: bytes, expected: type[CallError], words: str) -> None:
    with Node(lambda _: raw) as node, Client(node.url, start_up_wait=0) as client:
        with pytest.raises(expected, match=words):
            client.call("/echo", 1)
        assert len(node.requests) == 1
        with pytest.raises(expected, match=words):
            list(client.replies("/echo", 1))


def test_an_answer_beyond_the_limit_is_refused_by_its_announcement() -> None:
    announced = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.callboard.envelope\r\ncontent-length: 3000000000\r\n\r\n"
    )
    frame = struct.pack("<B3xI", 0, 2**31)
    stream = response(frame, media_type="application/vnd.callboard.envelope-stream")
    with Node(lambda request: stream if "stream" in request.headers["accept"] else announced) as node:
        client = Client(node.url)
        whole = "3000000000 bytes or more exceeds max_reply_bytes = 1073741824"
        with pytest.raises(InternalError, match=whole) as of_call:
            client.call("/echo", 1)
        with pytest.raises(InternalError, match="2147483648 bytes exceeds max_reply_bytes") as of_replies:
            list(client.replies("/echo", 1))
        assert of_call.value.type == of_replies.value.type == "reply_too_large"


def test_an_answer_is_charged_with_what_its_frames_unpack_to() -> None:
    pa = pytest.importorskip("pyarrow")
    sink = pa.BufferOutputStream()
    table = pa.table({"x": [0.0] * (1 << 17)})
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    stream = sink.getvalue().to_pybytes()
    tree = b"\xc9" + struct.pack(">Ib", len(stream), 5) + stream
    envelope = b"\x89CBE\x01\0\0\0" + struct.pack("<IIQ", len(tree), 0, 24 + len(tree)) + tree
    assert len(envelope) < 10_000
    with Node(lambda _: response(envelope)) as node:
        with Client(node.url) as client:
            assert client.call("/frame").num_rows == 1 << 17
        with Client(node.url, max_reply_bytes=1 << 20) as client:
            with pytest.raises(InternalError, match=r"unpack to .* bytes or more exceed 1048576") as raised:
                client.call("/frame")
            assert raised.value.type == "reply_too_large" and "`/frame`" in raised.value.message


def test_no_secret_is_shown() -> None:
    client = Client("http://ada:pa55@127.0.0.1:1", headers={"x": "pa55"}, proxy="http://a:pa55@b")
    assert repr(client) == "Client('http://127.0.0.1:1')"
    assert "pa55" not in repr(Settings(api_key="pa55", headers={"x": "pa55"}, proxy="http://a:pa55@b"))
    for wrong in ("http://ada:pa55@host:b", "http://ada:pa55@host/?q", "http://ada:pa55/w@", "http://a:pa55/@h:99999"):
        for scheme in ("http", "quic"):
            with pytest.raises(ValueError, match="url=") as raised:
                Client(wrong.replace("http", scheme))
            assert "ada" not in str(raised.value) and "pa55" not in str(raised.value)
    for settings in ({"proxy": "http://ada:pa55@host:99999"}, {"api_key": "pa55\n"}, {"headers": {"x": "pa55\n"}}):
        with pytest.raises(ValueError) as raised:
            Client("http://host", **settings)  # type: ignore[arg-type]
        assert "pa55" not in str(raised.value)
    with pytest.raises(ValueError, match="user and a password, and there is an api_key"):
        Client("http://ada:pa55@127.0.0.1:1", api_key="key")


@dataclasses.dataclass
class Point:
    x: int


def test_an_output_that_does_not_fit_is_no_error_of_the_input() -> None:
    """It has the route, the place and the id of the request, of each way to call."""

    def answer(request: Request) -> bytes:
        return frames({"x": "1"}) if "stream," in request.headers["accept"] else value({"x": "1"})

    async def asynchronous(url: str) -> list[CallError]:
        async with AsyncClient(url) as client:
            with pytest.raises(InvalidOutputError) as called:
                await client.call("/point", 1, returns=Point)
            with pytest.raises(InvalidOutputError) as replied:
                await anext(client.replies("/point", 1, returns=Point))
            return [called.value, replied.value, await anext(client.stream("/point", [1], returns=Point))]

    with Node(answer) as node, Client(node.url) as client:
        with pytest.raises(InvalidOutputError) as called:
            client.call("/point", 1, returns=Point)
        with pytest.raises(InvalidOutputError) as replied:
            next(client.replies("/point", 1, returns=Point))
        (streamed,) = client.stream("/point", [1], returns=Point)
        errors = [called.value, replied.value, streamed, *asyncio.run(asynchronous(node.url))]
        for error, request in zip(errors, node.requests, strict=True):
            assert isinstance(error, InternalError) and (error.kind, error.was_started) == ("internal", True)
            assert "route `/point` gives a value that cannot be read as `Point`: " in error.message
            assert error.details == {"fields": [{"path": "$.x", "message": "Expected `int`, got `str`"}]}
            assert error.request_id == request.headers["x-request-id"]
        assert len({error.request_id for error in errors}) == 6
        with pytest.raises(InvalidOutputError) as named:
            client.call("/point", 1, returns=Point, request_id="mine")
        assert named.value.request_id == "mine"


def test_a_call_without_an_answer_has_the_id_that_was_sent() -> None:
    with Node(lambda _: None) as node, Client(node.url) as client:
        with pytest.raises(UnavailableError) as raised:
            client.call("/echo", 1)
        assert raised.value.request_id == node.requests[0].headers["x-request-id"]
