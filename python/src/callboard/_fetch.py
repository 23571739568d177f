"""Files by URL: which hosts may be called is the operator's list, and each address is checked before it is called.

A name is looked up once, and the connection goes to the address that was checked: a name server cannot change its mind
in between. Redirects pass the same checks. Proxies of the environment are not used.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import ipaddress
import os
import re
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import msgspec

from callboard._look_up import TooManyLookups, look_up
from callboard._version import __version__

MAX_REDIRECTS = 3
MAX_URL = 8_192
MAX_FILES = 64
# Fetches at the same time, of one process, and of one call.
_THREADS = 64
_THREADS_OF_CALL = 16
_CHUNK = 64 << 10
_PORTS = {"http": 80, "https": 443}
# Addresses of IPv6 that stand for one of IPv4, which counts (RFC 6052).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class FetchError(ValueError):
    """Why a file was not fetched, for the client."""


class FileRules(msgspec.Struct, frozen=True):
    """The files that the operator allows: `files` of the message `start`."""

    hosts: tuple[str, ...]
    max_bytes: int = 16 << 20
    timeout_ms: int = 10_000


class Fetched(msgspec.Struct, frozen=True):
    data: bytes
    # As the server says it, in lower case and without parameters.
    media_type: str | None


# By their URLs.
Files = dict[str, Fetched | FetchError]


def taken(files: Files, url: str) -> Fetched:
    """One of the files, or its error."""
    found = files.get(url) or FetchError("it was not asked for")
    if isinstance(found, FetchError):
        raise found
    return found


def fetch_all(rules: FileRules, calls: Sequence[tuple[list[str], float | None]]) -> list[Files]:
    """The files of each call, by their URLs, at the same time. A call has a deadline on the monotonic clock.

    All files of a call have the time limit together, from now on, wherever they wait.
    """
    latest = time.monotonic() + rules.timeout_ms / 1000
    begun = [_Call(rules, urls, latest if until is None else min(latest, until)) for urls, until in calls]
    # The call with the first deadline is awaited first, so that each ends in time.
    for each in sorted(begun, key=lambda each: each.deadline):
        each.wait()
    return [each.files() for each in begun]


class _Call:
    """The files of one call. Its slow servers hold a share of the threads, until its deadline."""

    def __init__(self, rules: FileRules, urls: list[str], deadline: float) -> None:
        self.rules = rules
        self.deadline = deadline
        self.is_over = False
        self.room = _Room(rules.max_bytes)
        self._urls = list(dict.fromkeys(urls))
        self._left = deque(self._urls[:MAX_FILES])
        self._open: dict[str, _Fetch] = {}
        self._found: Files = {}
        count = min(len(self._left), _THREADS_OF_CALL)
        self._workers = [_pool(os.getpid()).submit(self._work) for _ in range(count)]

    def _work(self) -> None:
        while not self.is_over:
            try:
                url = self._left.popleft()
            except IndexError:
                return
            fetch = self._open[url] = _Fetch(self)
            self._found[url] = fetch.result(url)
            del self._open[url]

    def wait(self) -> None:
        """Waits until all are there, or the time is up."""
        wait(self._workers, timeout=max(0.0, self.deadline - time.monotonic()))
        self.is_over = True
        for each in self._workers:
            each.cancel()
        for fetch in list(self._open.values()):
            fetch.abort()

    def files(self) -> Files:
        too_many = FetchError(f"{len(self._urls)} URLs in one call, more than {MAX_FILES}")
        found = {url: self._found.get(url) or _late() for url in self._urls[:MAX_FILES]}
        return found | dict.fromkeys(self._urls[MAX_FILES:], too_many)


def _late() -> FetchError:
    return FetchError("it did not come in time")


class _Room:
    """The bytes that the files of one call may have together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = self._left = max_bytes
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        with self._lock:
            self._left -= size
            if self._left < 0:
                raise FetchError(f"the files of this call have more than {self._max_bytes} bytes")


class _Fetch:
    """One file on its way, in a thread of the pool."""

    def __init__(self, call: _Call) -> None:
        self._call = call
        self._socket: socket.socket | None = None

    def result(self, url: str) -> Fetched | FetchError:
        try:
            return self._fetch(url)
        except FetchError as error:
            return error
        except (TimeoutError, FutureTimeout):
            return _late()
        except Exception as error:
            if self._call.is_over:
                return _late()
            # Names and addresses inside of the operator's network are not the client's.
            return FetchError(f"it cannot be fetched ({type(error).__name__})")

    def abort(self) -> None:
        """Ends the thread's work, wherever it waits in the socket."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # That of TLS would change what the thread reads with.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _fetch(self, url: str) -> Fetched:
        for _ in range(MAX_REDIRECTS + 1):
            with self._asked(url) as answer:
                if answer.status not in (301, 302, 303, 307, 308):
                    return self._body(answer, _shown_host(urlsplit(url)))
                url = urljoin(url, answer.getheader("location") or "")
        raise FetchError(f"more than {MAX_REDIRECTS} redirects")

    @contextlib.contextmanager
    def _asked(self, url: str) -> Iterator[http.client.HTTPResponse]:
        parts, port, may_be_private = _permitted(self._call.rules, url)
        host = parts.hostname or ""
        with contextlib.ExitStack() as sockets:
            self._socket = sock = sockets.enter_context(self._connected(host, port, may_be_private))
            sock.settimeout(self._left())
            if parts.scheme == "https":
                tls = _tls().wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
                self._socket = sock = sockets.enter_context(tls)
                tls.do_handshake()
            connection = http.client.HTTPConnection(host, port)
            connection.sock = sock
            headers = {
                "host": parts.netloc,
                "user-agent": f"callboard/{__version__}",
                "accept-encoding": "identity",
                "connection": "close",
            }
            connection.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), headers=headers)
            with contextlib.closing(connection), contextlib.closing(connection.getresponse()) as answer:
                yield answer

    def _connected(self, host: str, port: int, may_be_private: bool) -> socket.socket:
        """A connection to the first address that may be called and answers."""
        failed: OSError = OSError()
        try:
            places = look_up(host, port, self._left(), waits=False)
        except TooManyLookups as error:
            raise FetchError(str(error)) from None
        for address in _addresses(places, may_be_private):
            try:
                return socket.create_connection((address, port), timeout=self._left())
            except TimeoutError:
                raise
            except OSError as error:
                failed = error
        raise failed

    def _body(self, answer: http.client.HTTPResponse, host: str) -> Fetched:
        if answer.status != 200:
            raise FetchError(f"its server answers with status {answer.status}")
        if answer.getheader("content-encoding", "identity") != "identity":
            raise FetchError("it comes compressed")
        announced = answer.getheader("content-length")
        if announced is not None and not re.fullmatch(r"[0-9]{1,18}", announced):
            raise FetchError(f"its server {host} announces an invalid length: {announced[:40]!r}")
        most, length = self._call.rules.max_bytes, answer.length
        pieces, size = [], 0
        while size <= most and (length is None or length <= most):
            piece = answer.read1(_CHUNK)
            self._left()
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
            if size <= most:
                self._call.room.take(len(piece))
        else:
            raise FetchError(f"it has more than {most} bytes")
        if length is not None and size < length:
            raise FetchError("it ended too early")
        kind = (answer.getheader("content-type") or "").partition(";")[0].strip().lower()
        return Fetched(b"".join(pieces), kind or None)

    def _left(self) -> float:
        left = self._call.deadline - time.monotonic()
        if left <= 0 or self._call.is_over:
            raise TimeoutError
        return left


@functools.lru_cache(maxsize=1)
def _pool(pid: int) -> ThreadPoolExecutor:
    """The threads of this process: a forked one has none of its parent's."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="callboard-fetch")


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


# ---- What may be called ----------------------------------------------------------------------------------------------


def _permitted(rules: FileRules, url: str) -> tuple[SplitResult, int, bool]:
    """The parts of a URL on the list, its port, and whether its address may be private."""
    if len(url) > MAX_URL or re.search(r"[^\x21-\x7e]|\\", url):
        raise FetchError(f"its URL has more than {MAX_URL} characters, or some that a URL does not have")
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        raise FetchError("its URL is not valid") from None
    if parts.username is not None or parts.password is not None:
        raise FetchError("its URL has a user or a password")
    host = (parts.hostname or "").rstrip(".")
    for rule in rules.hosts:
        scheme, _, authority = rule.partition("://")
        listed = urlsplit(f"//{authority.removeprefix('*.')}")
        same = listed.hostname == host if authority[:2] != "*." else host.endswith(f".{listed.hostname}")
        if same and scheme == parts.scheme and port == (listed.port or _PORTS[scheme]):
            return parts, port, listed.port is not None and authority[:2] != "*."
    default = "" if port == _PORTS.get(parts.scheme) else f":{port}"
    shown = f"{parts.scheme}://{_shown_host(parts)}{default}"
    raise FetchError(f"files of {shown} are not allowed (the operator's setting files.hosts)")


def _shown_host(parts: SplitResult) -> str:
    """The host as it is in a URL: an address of IPv6 has brackets."""
    host = (parts.hostname or "").rstrip(".")
    return f"[{host}]" if ":" in host else host


def _addresses(found: list[Any], may_be_private: bool) -> list[str]:
    """The addresses of a name. Private addresses are left out, wherever the name comes from."""
    addresses = dict.fromkeys(str(place[0]) for *_, place in found)
    allowed = [address for address in addresses if may_be_private or _is_public(address)]
    if not allowed:
        raise FetchError("its host has no public address")
    return allowed


def _is_public(text: str) -> bool:
    address: Any = ipaddress.ip_address(text.partition("%")[0])
    if address.version == 6:
        inside = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in _NAT64:
            inside = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inside is not None:
            address = inside
    is_site_local = address.version == 6 and address.is_site_local
    return bool(address.is_global and not (address.is_multicast or address.is_reserved or is_site_local))
