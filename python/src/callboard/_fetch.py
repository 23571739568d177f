"""Files by URL: which hosts may be called is the operator's list, and each address is checked before it is called.

A name is looked up once, and the connection goes to the address that was checked: a name server cannot change its mind
in between. Redirects pass the same checks. Proxies of the environment are not used.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import ipaddress
import math
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import msgspec

from callboard._version import __version__

MAX_REDIRECTS = 3
MAX_URL = 8_192
MAX_FILES = 64
# Fetches at the same time, of one process.
_THREADS = 16
_CHUNK = 64 << 10
_PORTS = {"http": 80, "https": 443}
# Addresses of IPv6 that stand for one of IPv4, which counts (RFC 6052).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class FetchError(ValueError):
    """Why a file was not fetched, for the client."""


class FileRules(msgspec.Struct, frozen=True):
    """What the operator allows: `files` of the message `start`."""

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
    """The files of each call, by their URLs, all at the same time. A call has a deadline on the monotonic clock."""
    wanted = [(list(dict.fromkeys(urls)), deadline, _Room(rules.max_bytes)) for urls, deadline in calls]
    begun: list[dict[str, _Fetch]] = [{} for _ in wanted]
    # In turn, so that a call of many files does not hold up the others.
    for index in range(MAX_FILES):
        for (urls, deadline, room), fetches in zip(wanted, begun, strict=True):
            if index < len(urls):
                fetches[urls[index]] = _Fetch(rules, urls[index], deadline, room)
    found = []
    for (urls, _, _), fetches in zip(wanted, begun, strict=True):
        files: Files = {url: fetch.result() for url, fetch in fetches.items()}
        too_many = FetchError(f"{len(urls)} URLs in one call, more than {MAX_FILES}")
        found.append(files | dict.fromkeys(urls[MAX_FILES:], too_many))
    return found


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
    """One file on its way, in a thread of the pool. Its time limit runs from when the thread begins with it."""

    def __init__(self, rules: FileRules, url: str, deadline: float | None, room: _Room) -> None:
        self._rules = rules
        self._room = room
        self._call_deadline = deadline
        self._deadline = math.inf if deadline is None else deadline
        self._socket: socket.socket | None = None
        self._is_aborted = False
        self._is_over = threading.Event()
        self._future: Future[Fetched] = _pool(os.getpid()).submit(self._begin, url)
        self._future.add_done_callback(lambda _: self._is_over.set())

    def result(self) -> Fetched | FetchError:
        """Waits for the file, no longer than the deadline of the call."""
        try:
            until = self._call_deadline
            self._is_over.wait(None if until is None else max(0.0, until - time.monotonic()))
            return self._future.result(0)
        except FetchError as error:
            return error
        except (TimeoutError, FutureTimeout):
            return FetchError("it did not come in time")
        except (OSError, http.client.HTTPException, ValueError) as error:
            if self._is_aborted:
                return FetchError("it did not come in time")
            # Names and addresses inside of the operator's network are not the client's.
            return FetchError(f"it cannot be fetched ({type(error).__name__})")
        finally:
            self.abort()

    def abort(self) -> None:
        """Ends the thread's work, wherever it waits in the socket."""
        self._is_aborted = True
        self._future.cancel()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # That of TLS would change what the thread reads with.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._is_over.set()

    def _begin(self, url: str) -> Fetched:
        self._deadline = min(self._deadline, time.monotonic() + self._rules.timeout_ms / 1000)
        timer = threading.Timer(self._left(), self.abort)
        timer.daemon = True
        timer.start()
        try:
            return self._fetch(url)
        finally:
            timer.cancel()

    def _fetch(self, url: str) -> Fetched:
        for _ in range(MAX_REDIRECTS + 1):
            with self._asked(url) as answer:
                if answer.status not in (301, 302, 303, 307, 308):
                    return self._body(answer, _shown_host(urlsplit(url)))
                url = urljoin(url, answer.getheader("location") or "")
        raise FetchError(f"more than {MAX_REDIRECTS} redirects")

    @contextlib.contextmanager
    def _asked(self, url: str) -> Iterator[http.client.HTTPResponse]:
        parts, port, may_be_private = _permitted(self._rules, url)
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
        for address in _addresses(host, port, may_be_private):
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
        most, length = self._rules.max_bytes, answer.length
        pieces, size = [], 0
        while size <= most and (length is None or length <= most):
            piece = answer.read1(_CHUNK)
            self._left()
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
            if size <= most:
                self._room.take(len(piece))
        else:
            raise FetchError(f"it has more than {most} bytes")
        if length is not None and size < length:
            raise FetchError("it ended too early")
        kind = (answer.getheader("content-type") or "").partition(";")[0].strip().lower()
        return Fetched(b"".join(pieces), kind or None)

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0 or self._is_aborted:
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


def _addresses(host: str, port: int, may_be_private: bool) -> list[str]:
    """The addresses of a name. Those that are not public are left out, wherever the name comes from."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
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
