"""The parts that both clients share: their settings, the options of their calls, values as envelopes and back."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from callboard._conversion import convert, output_hint, unreadable_output
from callboard._elsewhere import CLIENT, no_attribute
from callboard._envelope import FRAMES, Buffer, Decoder, EnvelopeError, TooLargeError, encode_pieces, forms_of
from callboard._exceptions import CallError, InvalidInput
from callboard._options import called_name
from callboard.client import _arguments
from callboard.client.errors import InternalError, InvalidInputError, InvalidOutputError
from callboard.client.policy import REPLY_TOO_LARGE
from callboard.client.transport import Options, Priority, Settings, without_user

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
C = TypeVar("C")


class CallSettings(TypedDict, total=False):
    """The options of a call. Options that are left out are those of the client's `with_options`."""

    timeout: str | float | None
    """How long the caller waits: seconds, or a text such as `"200ms"`. The node gets what is left of it."""
    priority: Priority | None
    """`"high"`, `"normal"` or `"low"`."""
    session: str | None
    """Calls with the same text reach the same replica (over QUIC)."""
    request_id: str | None
    """The caller's name for the call, in logs and errors."""
    traceparent: str | None
    """The caller's place in a trace, as the header of W3C Trace Context."""
    headers: Mapping[str, str] | None
    """Headers of the request, for code that takes them as arguments: `headers={"x-user": "ada"}`."""
    query: Mapping[str, str | int | float | bool] | None
    """Query parameters, for code that takes them as arguments: `query={"limit": 5}`."""
    idempotent: bool
    """The call may run twice: it is repeated when it was lost with its connection."""


_OPTIONS = tuple(CallSettings.__annotations__)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """An encoded call, for any client, any number of times.

    Arrays of 1024 bytes and more are not copied: do not change them before the last call has ended.
    """

    route: str
    """The path of the route, or the name of the function."""
    pieces: Sequence[Buffer] = dataclasses.field(repr=False)
    """The input as an envelope (`docs/wire.md`): its bytes are these pieces one after the other."""
    is_function: bool = False
    """Whether `route` is the name of a function."""

    @classmethod
    def call(cls, route: str, value: Any = None) -> Prepared:
        """A call of a route. Raises `TypeError` for a value that has no form, with its place, such as `$.a[1]`."""
        return cls(called_name(route), encode_pieces(value))

    @classmethod
    def send(cls, name: str, /, *args: Any, **kwargs: Any) -> Prepared:
        """A call of a route, named without its first slash, with positional and keyword values. `TypeError` as in
        `call`."""
        pieces = encode_pieces({"args": list(args), "kwargs": kwargs})
        return cls(called_name(name).lstrip("/"), pieces, is_function=True)


class BaseClient:
    """The settings of a client, and the options of its calls."""

    def __init__(
        self,
        url: str = "http://localhost:8000",
        *,
        api_key: str | None = None,
        timeout: str | float | None = None,
        start_up_wait: str | float = Settings.start_up_wait,
        connect_timeout: str | float = Settings.connect_timeout,
        attempts: int = Settings.attempts,
        max_connections: int = Settings.max_connections,
        keep_alive: str | float = Settings.keep_alive,
        max_reply_bytes: int = Settings.max_reply_bytes,
        verify: bool | str | os.PathLike[str] = True,
        certificate: str | os.PathLike[str] | tuple[str, str] | None = None,
        cluster: str | os.PathLike[str] | None = None,
        headers: Mapping[str, str] | None = None,
        proxy: str | None = None,
    ) -> None:
        settings = _arguments.settings(
            api_key=api_key,
            start_up_wait=start_up_wait,
            connect_timeout=connect_timeout,
            attempts=attempts,
            max_connections=max_connections,
            keep_alive=keep_alive,
            max_reply_bytes=max_reply_bytes,
            verify=verify,
            certificate=certificate,
            cluster=cluster,
            headers=headers,
            proxy=proxy,
        )
        self._set(url, {"timeout": timeout})
        self._max_reply_bytes = settings.max_reply_bytes
        self._open(settings)

    def _set(self, url: str, defaults: Mapping[str, Any]) -> None:
        self.url = url
        self._defaults = _arguments.options(defaults, _OPTIONS)
        self._returns: Any = Any
        self._max_reply_bytes = Settings.max_reply_bytes

    def _open(self, settings: Settings) -> None:
        """Makes the transports."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({without_user(self.url)!r})"

    if not TYPE_CHECKING:  # A checker tells of a wrong name itself.

        def __getattr__(self, name: str) -> Any:
            no_attribute(type(self), name, CLIENT)

    def with_options(self, *, returns: Any = None, **options: Any) -> Self:
        """The same client, with other options for its calls. It shares the connections.

        `returns` and the options are those of `call`. Raises `TypeError` or `ValueError` for an option that is wrong.
        """
        other = copy.copy(self)
        other._defaults = {**self._defaults, **_arguments.options(options, _OPTIONS)}
        if returns is not None:
            other._returns = output_hint(returns)
        return other

    @staticmethod
    def prepare(route: str, value: Any = None) -> Prepared:
        """Encodes a call, such as the next one while the node works on this one. `Prepared.send` does it by name.

        Raises `TypeError` for a value that has no form, with its place, and `ValueError` for a route that is wrong.
        """
        return Prepared.call(route, value)

    def _is_closed(self) -> bool:
        raise NotImplementedError

    def _check_open(self) -> None:
        if self._is_closed():
            raise RuntimeError("the client is closed")

    def _options(self, given: Mapping[str, Any], **more: Any) -> Options:
        self._check_open()
        options = {**self._defaults, **_arguments.options(given, _OPTIONS), **more}
        options.setdefault("request_id", _arguments.default_request_id())
        return Options(**options)

    def _hint(self, returns: Any) -> Any:
        """The type of the outputs. A wrong one is found before anything is sent."""
        return self._returns if returns is None else output_hint(returns)

    def _decoder(self, hint: Any) -> Decoder:
        return Decoder(self._max_reply_bytes, is_as_sent=not forms_of(hint) & FRAMES)

    def _read(self, buffer: Buffer, decoder: Decoder, hint: Any, route: str, options: Options) -> Any:
        """The value of an envelope, as the type of the hint, which the decoder is for."""
        try:
            value = decoder.decode(buffer)
            return value if hint is Any else convert(value, hint)
        except TooLargeError as error:
            message = f"the output of route `{route}`: {error} (max_reply_bytes)"
            request_id = options.request_id
            raise InternalError(message, kind="internal", type=REPLY_TOO_LARGE, request_id=request_id) from error
        except (EnvelopeError, MemoryError) as error:
            message = f"route `{route}` gives bytes that cannot be read: {error or 'out of memory'}"
            raise InternalError(message, kind="internal", request_id=options.request_id) from error
        except InvalidInput as error:
            message, details = unreadable_output(route, hint, error)
            request_id = options.request_id
            raise InvalidOutputError(message, kind="internal", details=details, request_id=request_id) from error


def input_error(error: TypeError) -> CallError:
    """An input of a stream that has no form."""
    return InvalidInputError(str(error), kind="invalid_input", was_started=False)
