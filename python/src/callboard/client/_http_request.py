"""Calls as requests over HTTP, without a socket: bodies in slices, headers, TLS and the proxy."""

from __future__ import annotations

import base64
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Iterator, Sequence

import h11
import httpx

from callboard._envelope import Buffer
from callboard._options import split_name
from callboard.client.transport import Options, Settings, timeout_millis, without_user

ENVELOPE = b"application/vnd.callboard.envelope"
STREAM_TYPE = b"application/vnd.callboard.envelope-stream"
# A route without a stream answers with one output.
ENVELOPES = STREAM_TYPE + b", " + ENVELOPE + b";q=0.9"

# Pieces are sent in slices of this size, so that what is copied on the way stays in the processor's cache.
_SLICE_BYTES = 1 << 20
# Smaller envelopes are sent in one piece.
SMALL_BYTES = 64 << 10
_MAX_SESSION_BYTES = 128


class Body:
    """The pieces of an envelope, to be sent more than once."""

    def __init__(self, pieces: Sequence[Buffer]) -> None:
        self.length = sum(map(len, pieces))
        self.pieces: Sequence[Buffer] = [b"".join(pieces)] if self.length <= SMALL_BYTES else pieces

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the call. httpx has its requests in cycles, which would keep the input."""
        self.pieces = ()

    def slices(self) -> Iterator[Buffer]:
        for piece in self.pieces:
            if len(piece) <= _SLICE_BYTES:
                yield piece
                continue
            view = memoryview(piece)
            for start in range(0, len(view), _SLICE_BYTES):
                yield view[start : start + _SLICE_BYTES]


class Sending(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body on its way. A node starts no call before it has the whole body."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self.is_whole = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self._body.slices()  # type: ignore[misc]
        self.is_whole = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._body.slices():
            yield piece  # type: ignore[misc]
        self.is_whole = True


class Endpoint:
    """The target of the calls: the address, the headers of every request, and TLS."""

    def __init__(self, url: str, settings: Settings) -> None:
        shown = without_user(url)
        try:
            self.base = httpx.URL(url)
            port = self.base.port
        except (httpx.InvalidURL, ValueError) as error:
            # The message of httpx may have a part of a password.
            reason = error if shown == url else "its user or password must be percent-encoded"
            raise ValueError(f"url={shown!r}: {reason}") from None
        if not self.base.host or self.base.query or self.base.fragment:
            raise ValueError(f'url={shown!r}: write "http://host:port"')
        if self.base.userinfo and settings.api_key is not None:
            raise ValueError(f"url={shown!r}: has a user and a password, and there is an api_key: give one of them")
        if settings.cluster is not None:
            raise ValueError("cluster: is for quic:// only")
        self.name = f"{self.base.scheme}://{self.base.netloc.decode()}"
        self.is_tls = self.base.scheme == "https"
        self.default_port = port is None
        self._prefix = self.base.raw_path.rstrip(b"/").decode("ascii")
        self._urls: dict[tuple[str, bool], httpx.URL] = {}
        self._headers = [
            (b"Host", self.base.netloc),
            (b"Accept-Encoding", b"identity"),
            (b"User-Agent", b"callboard-python"),
        ]
        if settings.api_key is not None:
            self._headers.append((b"Authorization", b"Bearer " + settings.api_key.encode("ascii")))
        if self.base.userinfo:
            user = f"{self.base.username}:{self.base.password}".encode()
            self._headers.append((b"Authorization", b"Basic " + base64.b64encode(user)))
        for name, value in settings.headers.items():
            self._headers.append((name.encode("ascii"), value.encode("ascii")))
        self.tls = _tls(settings) if self.is_tls else False
        # Until when no ordered stream of calls is tried, on the monotonic clock.
        self.no_streams_until = 0.0
        self.proxy = None if settings.proxy is None else _proxy(settings.proxy)

    def url(self, route: str, function: bool) -> httpx.URL:
        found = self._urls.get((route, function))
        if found is None:
            # An envelope in a `POST` names the method of its route by a header, and a function by its path.
            path = f"/v1/call/{route.lstrip('/')}" if function else split_name(route)[1]
            raw = f"{self._prefix}{urllib.parse.quote(path, safe='/%')}".encode("ascii")
            found = self.base.copy_with(raw_path=raw)
            if len(self._urls) < 1024:
                self._urls[route, function] = found
        return found

    def request(
        self, route: str, body: Body, options: Options, remaining: float | None, accept: bytes
    ) -> httpx.Request:
        own = [(b"Content-Type", ENVELOPE), (b"Accept", accept), (b"Content-Length", b"%d" % body.length)]
        url, headers = self._head(route, own, options, remaining)
        return httpx.Request("POST", url, headers=headers, stream=Sending(body))

    def head_of_calls(self, route: str, options: Options) -> h11.Request:
        """The head of an ordered stream of calls, whose timeout is that of each of its outcomes."""
        own = [(b"Content-Type", STREAM_TYPE), (b"Accept", STREAM_TYPE), (b"Transfer-Encoding", b"chunked")]
        url, headers = self._head(route, own, options, options.timeout)
        return h11.Request(method="POST", target=url.raw_path, headers=headers)

    def _head(
        self, route: str, own: list[tuple[bytes, bytes]], options: Options, remaining: float | None
    ) -> tuple[httpx.URL, list[tuple[bytes, bytes]]]:
        headers = [*self._headers, *own]
        method = None if options.function else split_name(route)[0]
        if method is not None:
            headers.append((b"X-Callboard-Method", method.encode()))
        if remaining is not None:
            headers.append((b"X-Request-Timeout-Ms", b"%d" % timeout_millis(remaining)))
        if options.priority is not None:
            headers.append((b"X-Request-Priority", options.priority.encode()))
        if options.session is not None:
            headers.append((b"X-Callboard-Session", _session(options.session)))
        if options.request_id is not None:
            headers.append((b"X-Request-Id", options.request_id.encode("ascii")))
        if options.traceparent is not None:
            headers.append((b"Traceparent", options.traceparent.encode("ascii")))
        url = self.url(route, options.function)
        if options.headers:
            given = [(name.encode("ascii"), value.encode("ascii")) for name, value in options.headers]
            names = {name for name, _ in given}
            headers = [*(each for each in headers if each[0].lower() not in names), *given]
        if options.query:
            query = urllib.parse.urlencode(options.query).encode("ascii")
            url = url.copy_with(raw_path=url.raw_path + b"?" + query)
        return url, headers


def _session(name: str) -> bytes:
    """The value of the header, as the node reads it: a server takes away spaces around it."""
    value = name.encode(errors="replace")
    if len(value) > _MAX_SESSION_BYTES or name != name.strip() or not name.isprintable():
        raise ValueError(f"session={name!r}: over HTTP it is a text of at most {_MAX_SESSION_BYTES} bytes on one line")
    return value


def _proxy(url: str) -> httpx.Proxy:
    try:
        proxy = httpx.Proxy(url)
        if proxy.url.host and 1 <= (proxy.url.port or 1) <= 65535:
            return proxy
    except (httpx.InvalidURL, ValueError):
        pass
    raise ValueError(f'proxy={without_user(url)!r}: write "http://host:port", with a port from 1 to 65535')


def _tls(settings: Settings) -> ssl.SSLContext | bool:
    if settings.verify is False:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif isinstance(settings.verify, str):
        try:
            context = ssl.create_default_context(cafile=settings.verify)
        except OSError as error:
            raise ValueError(f"verify={settings.verify!r}: {error}") from error
    else:
        context = httpx.create_ssl_context()
        context.load_default_certs()
    if settings.certificate is not None:
        files = (settings.certificate,) if isinstance(settings.certificate, str) else settings.certificate
        try:
            context.load_cert_chain(*files)
        except OSError as error:
            raise ValueError(f"certificate={settings.certificate!r}: {error}") from error
    return context
