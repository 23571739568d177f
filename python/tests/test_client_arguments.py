"""The arguments of clients: what is wrong is refused before anything is sent, in the same words by all clients."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from http_node import Node, echo

from callboard import AsyncClient, Client

SCHEMES = ["http", *(["quic"] if importlib.util.find_spec("callboard._native") else [])]
CLOSED = r"^the client is closed$"
NAN, INFINITE = float("nan"), float("inf")

Call = Callable[..., Any]


@pytest.fixture(params=[(kind, scheme) for kind in ("blocking", "asynchronous") for scheme in SCHEMES])
def call(request: pytest.FixtureRequest) -> Any:
    """Makes a call by one of the clients. It must not reach the node."""
    kind, scheme = request.param
    with Node(echo) as node:
        url = node.url.replace("http:", f"{scheme}:")

        def blocking(route: Any, **options: Any) -> None:
            with Client(url, start_up_wait=0) as client:
                client.call(route, 1, **options)

        async def asynchronous(route: Any, **options: Any) -> None:
            async with AsyncClient(url, start_up_wait=0) as client:
                await client.call(route, 1, **options)

        yield blocking if kind == "blocking" else lambda *a, **k: asyncio.run(asynchronous(*a, **k))
        assert node.connections == 0


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"timeout": True}, TypeError, 'timeout=True: write "5s"'),
        ({"timeout": [1]}, TypeError, r'timeout=\[1\]: write "5s"'),
        ({"timeout": "soon"}, ValueError, "timeout='soon': write \"5s\""),
        ({"timeout": 0}, ValueError, "timeout=0: must be from a millisecond to"),
        ({"timeout": -1.5}, ValueError, r"timeout=-1\.5: must be from a millisecond to 10\^9 seconds"),
        ({"timeout": NAN}, ValueError, "timeout=nan: must be from a millisecond to"),
        ({"timeout": INFINITE}, ValueError, "timeout=inf: must be from a millisecond to"),
        ({"timeout": 10**400}, ValueError, "timeout=10+: must be from a millisecond to"),
        ({"priority": "urgent"}, ValueError, "priority='urgent': \"high\""),
        ({"request_id": "a\r\nb: c"}, ValueError, "request_id='a.*': visible ASCII characters only, 1 to 128"),
        ({"request_id": "x" * 129}, ValueError, "request_id='x+': visible ASCII characters only, 1 to 128"),
        ({"request_id": ""}, ValueError, "request_id='': visible"),
        ({"request_id": 7}, TypeError, "request_id=7: visible"),
        ({"traceparent": "x"}, ValueError, "traceparent='x': of W3C"),
        ({"traceparent": f"00-{'0' * 32}-{'b' * 16}-01"}, ValueError, "traceparent="),
        ({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01-more"}, ValueError, "traceparent="),
        ({"session": ""}, ValueError, "session='': a text that is not empty"),
        ({"idempotent": "no"}, TypeError, "idempotent='no': True or False"),
    ],
)
def test_a_wrong_option_is_refused(call: Call, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call("/echo", **options)


@pytest.mark.parametrize("route", [None, 7, b"/echo", "", "/", "/echo/", "/a b", "/a?b", "/a\nb", "/a\0", "/\ud800"])
def test_a_wrong_route_is_refused(call: Call, route: Any) -> None:
    error = ValueError if isinstance(route, str) else TypeError
    with pytest.raises(error, match=r"route.*: write a path such as '/classify'"):
        call(route)


@pytest.mark.parametrize(
    ("route", "cure"),
    [
        ("/", "`/` is the index of the node"),
        ("GET /items?limit=1", "query={…}"),
        ("get /items", "'GET /classify'"),
        ("/cart/a b/add", "quote()"),
        ("/echo/", "without `/` at its end"),
    ],
)
def test_a_wrong_route_comes_with_its_cure(call: Call, route: str, cure: str) -> None:
    with pytest.raises(ValueError, match=re.escape(cure)):
        call(route)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"retries": None}, TypeError, "'retries'"),
        ({"timeout": INFINITE}, ValueError, "timeout=inf"),
        ({"start_up_wait": NAN}, ValueError, "start_up_wait=nan: must be from a millisecond"),
        ({"start_up_wait": False}, TypeError, "start_up_wait=False"),
        ({"connect_timeout": None}, TypeError, "connect_timeout=None"),
        ({"keep_alive": -1}, ValueError, "keep_alive=-1"),
        ({"attempts": 0}, ValueError, "attempts=0: must be an integer from 1"),
        ({"attempts": None}, ValueError, "attempts=None: must be an integer from 1"),
        ({"max_connections": 2.5}, ValueError, "max_connections=2.5"),
        ({"max_reply_bytes": True}, ValueError, "max_reply_bytes=True"),
        ({"api_key": "key\n"}, ValueError, "api_key: visible ASCII characters only"),
        ({"api_key": "schlüssel"}, ValueError, "api_key: visible ASCII characters only"),
        ({"api_key": b"key"}, TypeError, "api_key: must be a text, and not bytes"),
        ({"api_key": ""}, ValueError, "api_key: is empty"),
        ({"headers": [("a", "b")]}, TypeError, "headers: a mapping of names to values, and not list"),
        ({"headers": {"a": 3}}, TypeError, r"headers\['a'\]: must be a text, and not int"),
        ({"headers": {"a": "b\n"}}, ValueError, r"headers\['a'\]: visible ASCII characters only"),
        ({"headers": {"a b": "c"}}, ValueError, "headers: 'a b' is not the name of a header"),
        ({"headers": {"a": "1", "A": "2"}}, ValueError, "headers: two names differ only in case"),
        ({"headers": {"Content-Length": "3"}}, ValueError, "the client sets this one itself"),
        ({"headers": {"authorization": "b"}, "api_key": "a"}, ValueError, "api_key= sets this one"),
        ({"verify": None}, TypeError, "verify=None: True, False or the file"),
        ({"certificate": ("a", "b", "c")}, TypeError, "certificate=.*: a file, or a pair"),
        ({"cluster": 7}, TypeError, "cluster=7: a directory"),
        ({"proxy": 7}, TypeError, "proxy=int: write the URL of a proxy"),
    ],
)
def test_a_wrong_setting_is_refused(
    kind: Any, scheme: str, settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        kind(f"{scheme}://127.0.0.1:9", **settings)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_settings_that_are_not_for_the_scheme_or_not_there_are_refused(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cluster: is for quic:// only"):
        kind("http://host", cluster=tmp_path)
    with pytest.raises(ValueError, match="proxy='ftp://host': write"):
        kind("http://host", proxy="ftp://host")
    with pytest.raises(ValueError, match=r"verify='.*none\.pem': .*No such file"):
        kind("https://host", verify=tmp_path / "none.pem")
    with pytest.raises(ValueError, match=r"certificate='.*none\.pem': .*No such file"):
        kind("https://host", certificate=tmp_path / "none.pem")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("scheme", ["http", "https", "quic"])
@pytest.mark.parametrize("port", ["70000", "65536", "0", "-1", "b", "8000000000000", "8_0"])
@pytest.mark.parametrize("host", ["host", "[::1]"])
def test_a_port_beyond_the_limit_is_refused_at_once(kind: Any, scheme: str, port: str, host: str) -> None:
    with pytest.raises(ValueError) as raised:
        kind(f"{scheme}://{host}:{port}")
    message = str(raised.value)
    assert message == f"url='{scheme}://{host}:{port}': the port '{port}' is not a number from 1 to 65535"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://a", "http://", "http://a/?q", "http://a b", "", None, b"http://a"]
)
def test_a_wrong_url_is_refused(kind: Any, url: Any) -> None:
    with pytest.raises(ValueError if isinstance(url, str) else TypeError, match=r"url=.*: write .http://host:port"):
        kind(url)


@pytest.mark.parametrize("look_ahead", [0, True, 2.5, None])
def test_a_wrong_look_ahead_is_refused(look_ahead: Any) -> None:
    for client in (Client(), AsyncClient()):
        with pytest.raises(ValueError, match=r"look_ahead=.*: must be an integer from 1"):
            client.stream("/echo", [1], look_ahead=look_ahead)


def test_both_clients_are_closed_in_the_same_words() -> None:
    with Node(echo) as node:
        client = Client(node.url)
        other = client.with_options(timeout=1)
        assert client.call("/echo", 1) == 1
        client.close()
        for each in (client, other):
            for use in (each.call, each.replies, each.__enter__):
                with pytest.raises(RuntimeError, match=CLOSED):
                    use(*(("/echo", 1) if use != each.__enter__ else ()))
            with pytest.raises(RuntimeError, match=CLOSED):
                each.stream("/echo", [1])

        asynchronous = AsyncClient(node.url)

        async def closed() -> None:
            assert await asynchronous.call("/echo", 1) == 1
            await asynchronous.aclose()
            for each in (asynchronous, asynchronous.with_options(timeout=1)):
                with pytest.raises(RuntimeError, match=CLOSED):
                    await each.call("/echo", 1)
                with pytest.raises(RuntimeError, match=CLOSED):
                    await each.__aenter__()
                for use in (each.replies, each.stream):
                    with pytest.raises(RuntimeError, match=CLOSED):
                        use("/echo", [1])

        async def in_another_loop() -> None:
            assert await asynchronous.call("/echo", 1) == 1

        asyncio.run(closed())
        asyncio.run(in_another_loop())
        assert len(node.requests) == 3
