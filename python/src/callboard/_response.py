"""The answer of a call over HTTP beside its output: its status, headers, media type and file name."""

from __future__ import annotations

import dataclasses
import http.cookies
import mimetypes
import re
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from callboard._elsewhere import RESPONSE, cure_after
from callboard._headers import Headers, checked
from callboard._media import BYTES, File

if TYPE_CHECKING:
    from callboard._context import Context

# What the items of a batch may choose in all: a quarter of the head of a frame.
_MAX_CHOSEN_BYTES = 1 << 20
# What an item or a header takes there beside its characters.
_ITEM_BYTES = 16
_NOT_IN_COOKIES = re.compile(r"[;,\x00-\x1f\x7f]")

# The statuses of an answer without a body.
_WITHOUT_BODY = (204, 205, 304)


class ResponseHeaders(MutableMapping[str, str]):
    """The headers of an answer, by names in any case. `append` adds one with a name that is there already.

    Raises `ValueError` for a header that HTTP does not allow, that is the server's own, or beyond the limits.
    """

    def __init__(self, headers: Headers | None = None) -> None:
        self._pairs = checked(headers, of_response=True)
        self._is_sent = False

    def append(self, name: str, value: str) -> None:
        self._set([*self._pairs, (name, value)])

    def pairs(self) -> list[tuple[str, str]]:
        return list(self._pairs)

    def _set(self, pairs: list[tuple[str, str]]) -> None:
        check_open(self._is_sent)
        self._pairs = checked(pairs, of_response=True)

    def __getitem__(self, name: str) -> str:
        for known, value in self._pairs:
            if known.lower() == name.lower():
                return value
        raise KeyError(name)

    def __setitem__(self, name: str, value: str) -> None:
        self._set([*_without(self._pairs, name), (name, value)])

    def __delitem__(self, name: str) -> None:
        self[name]
        self._set(_without(self._pairs, name))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for name, _ in self._pairs))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return f"ResponseHeaders({self._pairs!r})"


def _no_attribute(name: str) -> str:
    return f"a response has no {name!r}{cure_after(name, RESPONSE, dir(Response))}"


class Response:
    """An output with the status, headers and media type of its answer: `return cb.Response(item, 201)`.

    `context.response` is one without a body, for code that returns or yields its outputs as usual.

    * `body`: the output, whatever the hint of the result says.
    * `status_code`: from 200 to 599, 200 by default. With 204, 205 and 304 there is no body.
    * `headers`: a mapping or a list of pairs, at most 16 with 2,048 bytes in all.
    * `media_type`: a body that is a text or bytes is sent as it is, if the request accepts this media type.
    * `filename`: the name under which a client should save a text or bytes.

    Raises `ValueError` for a status or header that an answer cannot have.
    """

    __slots__ = ("_is_returned", "_is_sent", "_status_code", "body", "headers")

    def __init__(
        self,
        body: Any = None,
        status_code: int | None = None,
        headers: Headers | None = None,
        media_type: str | None = None,
        filename: str | None = None,
    ) -> None:
        self._is_sent = False
        # Whether its output was returned in a `Response`, which no hint describes.
        self._is_returned = False
        self._status_code: int | None = None
        self.body = body
        self.headers = ResponseHeaders(headers)
        if status_code is not None:
            self.status_code = status_code
        if filename is not None:
            self.headers["content-disposition"] = _disposition(filename)
            media_type = media_type or mimetypes.guess_type(filename)[0] or BYTES
        if media_type is not None:
            self.media_type = media_type

    if not TYPE_CHECKING:  # A checker tells of a wrong name itself.

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name if name.startswith("__") else _no_attribute(name))

        def __setattr__(self, name: str, value: Any) -> None:
            try:
                object.__setattr__(self, name, value)
            except AttributeError:
                raise AttributeError(_no_attribute(name)) from None

    @property
    def status_code(self) -> int | None:
        """The status; None for 200."""
        return self._status_code

    @status_code.setter
    def status_code(self, status_code: int) -> None:
        check_open(self._is_sent)
        if isinstance(status_code, bool) or not isinstance(status_code, int) or not 200 <= status_code <= 599:
            raise ValueError(f"the status {status_code!r} is not an integer from 200 to 599")
        self._status_code = int(status_code)

    @property
    def media_type(self) -> str | None:
        """The header `content-type`."""
        return self.headers.get("content-type")

    @media_type.setter
    def media_type(self, media_type: str) -> None:
        if media_type.startswith("text/") and "charset" not in media_type and not isinstance(self.body, bytes):
            # A text is sent in this one.
            media_type += "; charset=utf-8"
        self.headers["content-type"] = media_type

    def set_cookie(
        self,
        key: str,
        value: str = "",
        max_age: int | None = None,
        path: str | None = "/",
        domain: str | None = None,
        secure: bool = False,
        httponly: bool = False,
        samesite: str | None = "lax",
    ) -> None:
        """Adds a header `set-cookie`. `max_age` is in seconds; None ends the cookie with the session of a browser.
        `samesite` is `"lax"`, `"strict"` or `"none"`."""
        if samesite is not None and samesite.lower() not in ("lax", "strict", "none"):
            raise ValueError(f"the cookie {key!r}: samesite={samesite!r} is not one of 'lax', 'strict' and 'none'")
        for name, part in (("path", path), ("domain", domain)):
            # It would be read as more attributes, or as a header.
            if part is not None and _NOT_IN_COOKIES.search(part):
                raise ValueError(f"the cookie {key!r}: {name}={part!r} has a semicolon, comma or control character")
        try:
            cookie: http.cookies.SimpleCookie = http.cookies.SimpleCookie({key: value})
        except http.cookies.CookieError as error:
            raise ValueError(f"the cookie {key!r}: {error}") from None
        options = {"max-age": max_age, "path": path, "domain": domain, "samesite": samesite}
        options |= {"secure": secure or None, "httponly": httponly or None}
        cookie[key].update({name: str(option) for name, option in options.items() if option is not None})
        self.headers.append("set-cookie", cookie.output(header="").strip())

    def delete_cookie(self, key: str, path: str = "/", domain: str | None = None) -> None:
        """Adds a header `set-cookie` that ends a cookie."""
        self.set_cookie(key, max_age=0, path=path, domain=domain)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.body!r}, {self._status_code}, {self.headers.pairs()!r})"

    def _replace_by(self, later: Response) -> None:
        """Takes what another one has chosen, in the place of what is chosen under the same names here."""
        if later.status_code is not None:
            self.status_code = later.status_code
        kept = self.headers.pairs()
        for name in later.headers:
            kept = _without(kept, name)
        self.headers._set([*kept, *later.headers.pairs()])

    def _complete(self, declared: Declared, *, has_output: bool) -> None:
        """Takes what its route declares where its code has chosen nothing else, as a node does."""
        self._status_code = self._status_code or declared.status
        if has_output and declared.media_type is not None and self.media_type is None:
            self.headers._pairs.append(("content-type", declared.media_type))

    def _end(self, declared: Declared | None, outputs: list[Any]) -> None:
        """Ends the choice of a call that was made without a node. One without an output has no answer."""
        if outputs and declared is not None:
            self._complete(declared, has_output=outputs[0] is not None)
        self._head()

    def _head(self) -> dict[str, Any] | None:
        """The answer as the worker protocol has it; None if nothing is chosen. It cannot be changed any more."""
        self._is_sent = self.headers._is_sent = True
        head: dict[str, Any] = {} if self._status_code is None else {"status": self._status_code}
        if self.headers:
            head["headers"] = self.headers.pairs()
        return head or None


class Redirect(Response):
    """An answer that leads to another URL: `return cb.Redirect("/items/7")`. With status 303 it is asked for by GET."""

    __slots__ = ()

    def __init__(self, url: str, status_code: int = 307, headers: Headers | None = None) -> None:
        if not 300 <= status_code <= 399:
            raise ValueError(f"Redirect: the status {status_code} is not from 300 to 399")
        super().__init__(None, status_code, headers)
        self.headers["location"] = quote(str(url), safe=":/%#?=@[]!$&'()*+,;")


@dataclasses.dataclass(frozen=True)
class Declared:
    """What a route says of its answers: the node gives it to those whose code chooses nothing else."""

    status: int | None = None
    media_type: str | None = None
    description: str | None = None
    # Whether its code chooses the media type.
    chooses_media_type: bool = False

    def followed_by(self, later: Declared) -> Declared:
        """What two steps of a pipeline say, one after the other."""
        media_type = None if later.chooses_media_type else self.media_type
        return Declared(
            later.status or self.status,
            later.media_type or media_type,
            later.description or self.description,
            later.chooses_media_type or self.chooses_media_type,
        )


def declared(status_code: int | None, media_type: str | None, description: str | None) -> Declared | None:
    """The options of a decorator. Raises `ValueError` as `Response`."""
    found = Declared(status_code, media_type, description)
    Response("", status_code, None, media_type)
    return None if found == Declared() else found


# In the place of an answer that is on its way.
SENT = Response()
SENT._head()


def begun(context: Context) -> dict[str, Any] | None:
    """What the code has chosen of an answer that begins now, as the worker protocol has it; None if nothing."""
    response, context._response = context._response, SENT
    return None if response is None else response._head()


def add_chosen(responses: list[dict[str, Any] | None], index: int, context: Context, size: int) -> int:
    """Adds what the code of an item has chosen to that of the items before it, of this size; returns the new one.

    Raises `ValueError` where the frame of a batch has no room for it.
    """
    response = begun(context)
    if response is None:
        return size
    size += _ITEM_BYTES + sum(len(name) + len(value) + _ITEM_BYTES for name, value in response.get("headers", ()))
    if size > _MAX_CHOSEN_BYTES:
        raise ValueError("no room for its headers in its batch: use a smaller max_batch_size")
    responses += [None] * (index - len(responses))
    responses.append(response)
    return size


# What is more than an output.
ANSWERS = (Response, File)


def check_open(is_sent: bool) -> None:
    if is_sent:
        raise RuntimeError("the answer has begun: its status and headers are chosen before the first output")


def output_of(answer: Response | File, context: Context) -> Any:
    """The output that a returned answer has. What else it has goes to the call."""
    if isinstance(answer, File):
        if answer._is_chosen:
            context.response._replace_by(Response(b"", None, None, answer.media_type, answer.name))
        return answer
    status_code = answer.status_code
    if answer.body is not None and status_code in _WITHOUT_BODY:
        raise ValueError(f"the status {status_code} has no body: return cb.Response(status_code={status_code})")
    context.response._replace_by(answer)
    context.response._is_returned = True
    body = answer.body
    if body is None:
        # That which is chosen otherwise is for a body.
        context.response.headers.pop("content-type", None)
    return output_of(body, context) if isinstance(body, ANSWERS) else body


def _without(pairs: list[tuple[str, str]], name: str) -> list[tuple[str, str]]:
    return [(known, value) for known, value in pairs if known.lower() != name.lower()]


def _disposition(filename: str) -> str:
    """RFC 6266: a name of other than plain characters is encoded."""
    plain = quote(filename, safe=" !#$&+-.^_`|~()[]{}@,;='")
    if plain == filename:
        return f'attachment; filename="{filename}"'
    return f"attachment; filename*=utf-8''{quote(filename, safe='')}"
