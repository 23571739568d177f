"""Files by URL: from a real server, within the operator's rules."""

from __future__ import annotations

import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from node import Node

from callboard import _fetch, _look_up
from callboard._fetch import Fetched, FetchError, FileRules, fetch_all

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
LIMIT_SECONDS = 20


class Site(BaseHTTPRequestHandler):
    """`/png`, `/html`, `/coded?CODING`, `/large`, `/endless`, `/slow`, `/length?LENGTH`, `/drip`, `/to?URL`; 404."""

    protocol_version = "HTTP/1.1"
    # Set when a test is over.
    done = threading.Event()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/png":
            self.answer(200, PNG, ("content-type", "image/png"))
        elif path == "/html":
            self.answer(200, b"<html>", ("content-type", "text/html; charset=utf-8"))
        elif path == "/unnamed":
            self.answer(200, PNG, ("content-type", "application/octet-stream"))
        elif path == "/coded":
            self.answer(200, PNG, ("content-encoding", urllib.parse.unquote(query)))
        elif path == "/host":
            self.answer(200, self.headers["host"].encode())
        elif path == "/to":
            self.answer(302, b"", ("location", query))
        elif path == "/large":
            self.answer(200, bytes(2 << 20))
        elif path == "/endless":
            self.send_response(200)
            self.end_headers()
            while self.write(bytes(64 << 10)):
                pass
        elif path == "/length":
            self.send_response(200)
            for length in query.split("&"):
                self.send_header("content-length", length)
            self.end_headers()
            self.close_connection = True
        elif path == "/slow":
            self.done.wait(LIMIT_SECONDS)
        elif path == "/drip":
            # Each byte comes soon enough, all of them do not.
            while self.write(b"H") and not self.done.wait(0.05):
                pass
        else:
            self.answer(404, b"")

    def write(self, data: bytes) -> bool:
        try:
            self.wfile.write(data)
        except OSError:
            return False
        return True

    def answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (*headers, ("content-length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    Site.done.clear()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    Site.done.set()
    server.shutdown()


def fetch(url: str, *hosts: str, deadline: float | None = None, **rules: int) -> Fetched | FetchError:
    (files,) = fetch_all(FileRules(hosts, **rules), [([url], deadline)])
    return files[url]


def refused(url: str, *hosts: str, **rules: int) -> str:
    found = fetch(url, *hosts, **rules)
    assert isinstance(found, FetchError), found
    return str(found)


def test_a_file_of_a_listed_host_is_fetched(site: str) -> None:
    assert fetch(f"{site}/png", site) == Fetched(PNG, "image/png")
    assert fetch(f"{site}/host", site) == Fetched(site.partition("//")[2].encode(), None)
    assert fetch(f"{site}/to?{site}/to?/png", site) == Fetched(PNG, "image/png")
    assert "status 404" in refused(f"{site}/nothing", site)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/x",
        "http://127.0.0.1/x",
        "https://example.org/x",
        "http://user@{site}/png",
        "http://{site}@example.org/png",
        "http://{site}\\@example.org/png",
        "ftp://{site}/png",
        "file:///etc/passwd",
        "http://{site}/a b",
        "http://[::1",
        "http://a:99999/",
        "http://{site}/" + "x" * 9000,
    ],
)
def test_a_host_that_is_not_listed_is_not_called(site: str, url: str) -> None:
    text = refused(url.replace("{site}", site.partition("//")[2]), site)
    assert "not allowed" in text or "its URL" in text


@pytest.mark.parametrize("length", ["-5", "five", "0x5", "5.0", "+5", "5&6", "", "9" * 19])
def test_a_length_that_is_no_number_is_refused_and_the_host_named(site: str, length: str) -> None:
    shown = ", ".join(length.split("&"))[:40]
    assert refused(f"{site}/length?{length}", site) == f"its server 127.0.0.1 announces an invalid length: '{shown}'"


def test_the_host_of_ipv6_has_brackets(site: str) -> None:
    assert "files of http://[::1]:81 are not allowed" in refused("http://[::1]:81/png", site)


def test_a_redirect_to_another_host_or_a_private_address_is_not_followed(site: str) -> None:
    port = site.rpartition(":")[2]
    for other in (f"http://127.0.0.2:{port}/png", f"http://localhost:{port}/png", "http://169.254.169.254/latest"):
        assert "not allowed" in refused(f"{site}/to?{other}", site)
    assert refused(f"{site}/to?/to?/to?/to?/png", site) == "more than 3 redirects"
    # A listed name that has a private address, without a port of its own in the list.
    assert refused(f"{site}/to?http://localhost/png", site, "http://localhost") == "its host has no public address"


def test_the_address_that_was_checked_is_the_one_that_is_called(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(site.rpartition(":")[2])
    asked = []

    def answer(address: str) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    real = socket.getaddrinfo

    def rebinding(host: str, *more: Any, **named: Any) -> list[Any]:
        if host != "files.test":
            return list(real(host, *more, **named))
        asked.append(host)
        return answer("127.0.0.1" if len(asked) == 1 else "127.0.0.3")

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    assert fetch(f"http://files.test:{port}/png", f"http://files.test:{port}") == Fetched(PNG, "image/png")
    assert asked == ["files.test"]
    assert refused("http://files.test/png", "http://files.test") == "its host has no public address"


PRIVATE = """127.0.0.1 10.1.2.3 169.254.169.254 192.168.1.1 100.64.0.1 0.0.0.0 224.0.0.1 255.255.255.255 ::1 ::
fe80::1%1 fec0::1 fd00::1 ::ffff:127.0.0.1 2002:7f00:1:: 64:ff9b::a01:203"""


@pytest.mark.parametrize("address", PRIVATE.split())
def test_addresses_that_are_not_public(address: str) -> None:
    assert not _fetch._is_public(address)


def test_public_addresses() -> None:
    assert _fetch._is_public("8.8.8.8") and _fetch._is_public("2606:4700::1111")


def test_all_names_below_a_name_and_only_those() -> None:
    rules = FileRules(("https://*.example.org",))
    assert _fetch._permitted(rules, "https://a.b.Example.org/x")[1:] == (443, False)
    for url in (
        "https://example.org/",
        "https://evilexample.org/",
        "http://a.example.org/",
        "https://a.example.org:1/",
    ):
        with pytest.raises(FetchError):
            _fetch._permitted(rules, url)


def test_a_file_that_is_too_large_is_given_up(site: str) -> None:
    for path in ("large", "endless"):
        assert refused(f"{site}/{path}", site, max_bytes=1 << 20) == "it has more than 1048576 bytes"
    (files,) = fetch_all(FileRules((site,), max_bytes=150), [([f"{site}/png", f"{site}/png?2"], None)])
    assert {type(file) for file in files.values()} == {Fetched, FetchError}


@pytest.mark.parametrize("path", ["slow", "drip"])
def test_a_slow_server_has_the_time_limit_and_the_deadline_of_the_call(site: str, path: str) -> None:
    begin = time.monotonic()
    assert refused(f"{site}/{path}", site, timeout_ms=300) == "it did not come in time"
    found = fetch(f"{site}/{path}", site, deadline=time.monotonic() + 0.3)
    assert str(found) == "it did not come in time"
    assert time.monotonic() - begin < LIMIT_SECONDS / 2
    # The threads that fetched are free again.
    assert isinstance(fetch(f"{site}/png", site), Fetched)


def test_files_of_a_batch_are_fetched_at_the_same_time(site: str) -> None:
    begin = time.monotonic()
    calls = [([f"{site}/slow?{index}"], None) for index in range(8)]
    found = fetch_all(FileRules((site,), timeout_ms=1000), calls)
    assert all(isinstance(file, FetchError) for files in found for file in files.values())
    assert time.monotonic() - begin < 6
    many = [f"{site}/png?{index}" for index in range(65)]
    (files,) = fetch_all(FileRules((site,)), [(many, None)])
    assert str(files[many[64]]) == "65 URLs in one call, more than 64"


def test_all_files_of_a_call_have_the_time_limit_together(site: str) -> None:
    begin = time.monotonic()
    slow = [f"{site}/slow?{index}" for index in range(64)]
    calls = [(slow, None), ([f"{site}/png"], None), ([f"{site}/png?2"], time.monotonic() + LIMIT_SECONDS)]
    found = fetch_all(FileRules((site,), timeout_ms=2000), calls)
    assert 2 <= time.monotonic() - begin < LIMIT_SECONDS / 2
    assert {str(found[0][url]) for url in slow} == {"it did not come in time"}
    # They do not wait for the slow ones of another call.
    assert isinstance(found[1][f"{site}/png"], Fetched) and isinstance(found[2][f"{site}/png?2"], Fetched)
    assert isinstance(fetch(f"{site}/png", site), Fetched)


def test_a_name_that_is_never_found_holds_no_thread(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(site.rpartition(":")[2])
    found_at_last, real = threading.Event(), socket.getaddrinfo

    def slow(host: str, *more: Any, **named: Any) -> list[Any]:
        if host.endswith(".test"):
            found_at_last.wait(LIMIT_SECONDS)
            raise socket.gaierror("not found")
        return list(real(host, *more, **named))

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(_look_up, "LOOKUPS", 70)
    _look_up.turns.cache_clear()
    rules = FileRules((f"http://*.test:{port}", site), timeout_ms=500)
    for batch in range(4):
        urls = [f"http://n{batch}-{index}.test:{port}/" for index in range(16)]
        (files,) = fetch_all(rules, [(urls, None)])
        assert {str(file) for file in files.values()} == {"it did not come in time"}
        assert isinstance(fetch(f"{site}/png", site), Fetched)
    (files,) = fetch_all(rules, [([f"http://m{index}.test:{port}/" for index in range(16)], None)])
    assert "too many names are looked up at this time" in {str(file) for file in files.values()}
    found_at_last.set()
    _look_up.turns.cache_clear()


def test_a_look_up_without_a_thread_takes_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_look_up, "LOOKUPS", 2)
    _look_up.turns.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                _look_up.look_up("localhost", 80, 5, waits=False)
    assert _look_up.look_up("localhost", 80, LIMIT_SECONDS, waits=False)
    _look_up.turns.cache_clear()


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate, gzip", "x"])
def test_a_file_that_comes_compressed_is_refused(site: str, coding: str) -> None:
    assert refused(f"{site}/coded?{urllib.parse.quote(coding)}", site) == "it comes compressed"
    assert isinstance(fetch(f"{site}/coded?identity", site), Fetched)


def test_a_failed_fetch_fails_its_item_only_with_its_field(site: str) -> None:
    rules = {"hosts": [site], "max_bytes": 1 << 20, "timeout_ms": 10_000}
    for target in ("media.py:sizes", "media.py:sizes_async"):
        with Node(target, files=rules).ready() as node:
            found = node.call(
                {"image": f"{site}/png"},
                {"image": {"url": f"{site}/unnamed"}},
                {"image": f"{site}/html"},
                {"image": "http://example.org/x"},
                {"url": f"{site}/png"},
                f"{site}/png",
            )
            assert [found[index] for index in (0, 1, 4, 5)] == [("image/png", len(PNG))] * 4
            assert found[2]["invalid"] and "Expected a file of image/*, got text/html" in found[2]["message"]
            assert found[3]["details"]["fields"][0]["path"] == "$.image"
            assert "files of http://example.org are not allowed" in found[3]["message"]


def test_without_rules_a_url_is_refused(site: str) -> None:
    with Node("media.py:sizes").ready() as node:
        (found,) = node.call({"image": f"{site}/png"})
        assert found["invalid"] and "this server fetches none (setting files.hosts)" in found["message"]
