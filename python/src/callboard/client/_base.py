"""What both clients share: their settings, the options of their calls, values as envelopes and back."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from callboard._api import CallError, InvalidInput, _route, nearest_name, timeout_ms
from callboard._envelope import Buffer, Decoder, EnvelopeError, encode_pieces
from callboard._signature import _name, _normal, convert
from callboard.client.errors import InternalError, InvalidInputError
from callboard.client.transport import Options, Priority, Settings

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
C = TypeVar("C")


class CallSettings(TypedDict, total=False):
    """The options of a call. What is left out is as the client's `with_options` says."""

    # How long the caller waits: seconds, or "200ms". The node gets what is left of it.
    timeout: str | float | None
    priority: Priority | None
    # Calls with the same key reach the same replica (over QUIC).
    session: str | None
    # The caller's name for the call, in logs and errors.
    request_id: str | None
    # The caller's place in a W3C trace.
    traceparent: str | None
    # The call may run twice: it is repeated when it was lost with its connection.
    idempotent: bool


_OPTIONS = tuple(CallSettings.__annotations__)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """An encoded call, for any client, any number of times. Its arrays are not copied: do not change them meanwhile."""

    route: str
    pieces: Sequence[Buffer] = dataclasses.field(repr=False)
    is_function: bool = False

    @classmethod
    def call(cls, route: str, value: Any = None) -> Prepared:
        """A call of a route. `TypeError` names a value that has no form, and its place."""
        return cls(_route(route), encode_pieces(value))

    @classmethod
    def send(cls, name: str, /, *args: Any, **kwargs: Any) -> Prepared:
        """A call of a function by its name, with positional and keyword values. `TypeError` as in `call`."""
        pieces = encode_pieces({"args": list(args), "kwargs": kwargs})
        return cls(_route(name).lstrip("/"), pieces, is_function=True)


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
        verify: bool | str = True,
        certificate: str | tuple[str, str] | None = None,
        cluster: str | os.PathLike[str] | None = None,
        headers: Mapping[str, str] | None = None,
        proxy: str | None = None,
    ) -> None:
        self.url = url
        self._settings = Settings(
            api_key=api_key,
            headers=dict(headers or {}),
            start_up_wait=_seconds(start_up_wait),
            connect_timeout=_seconds(connect_timeout),
            attempts=max(1, attempts),
            max_connections=max_connections,
            keep_alive=_seconds(keep_alive),
            max_reply_bytes=max_reply_bytes,
            verify=verify,
            certificate=certificate,
            cluster=cluster,
            proxy=proxy,
        )
        self._defaults: dict[str, Any] = {}
        self._returns: Any = Any
        if timeout is not None:
            self._defaults["timeout"] = timeout_ms(timeout) / 1000

    def __repr__(self) -> str:
        # Without a user and a password.
        url = re.sub(r"//[^/?#]*@", "//", self.url, count=1)
        return f"{type(self).__name__}({url!r})"

    def with_options(self, *, returns: Any = None, **options: Any) -> Self:
        """The same client, with other options for its calls. It shares the connections."""
        other = copy.copy(self)
        other._defaults = {**self._defaults, **_checked(options)}
        if returns is not None:
            other._returns = returns
        return other

    @staticmethod
    def prepare(route: str, value: Any = None) -> Prepared:
        """Encodes a call, such as the next one while the node works on this one. `Prepared.send` does it by name."""
        return Prepared.call(route, value)

    def _options(self, prepared: Prepared, given: Mapping[str, Any], **more: Any) -> Options:
        return Options(function=prepared.is_function, **{**self._defaults, **_checked(given), **more})

    def _read(self, buffer: Buffer, returns: Any, route: str) -> Any:
        """The value of an envelope, as the type of the hint."""
        hint = _normal(self._returns if returns is None else returns)
        try:
            value = Decoder().decode(buffer)
            return value if hint is Any else convert(value, hint)
        except EnvelopeError as error:
            message = f"route `{route}` gives bytes that cannot be read: {error}"
            raise InternalError(message, kind="internal") from error
        except InvalidInput as error:
            message = f"route `{route}` gives a value that cannot be read as `{_name(hint)}`: {error}"
            raise InvalidInputError(message, kind="invalid_input") from error


def _seconds(duration: str | float) -> float:
    """Zero, or what `timeout_ms` reads."""
    return 0.0 if duration == 0 else timeout_ms(duration) / 1000


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given, with the time in seconds."""
    for name in options:
        if name not in _OPTIONS:
            near = nearest_name(name, _OPTIONS)
            hint = f": did you mean {near!r}?" if near else f": there is {', '.join(_OPTIONS)}"
            raise TypeError(f"a call has no option {name!r}{hint}")
    found = {name: value for name, value in options.items() if value is not None}
    if "timeout" in found:
        found["timeout"] = timeout_ms(found["timeout"]) / 1000
    if found.get("priority", "high") not in ("high", "normal", "low"):
        raise ValueError(f'priority={found["priority"]!r}: "high", "normal" or "low"')
    return found


def input_error(error: TypeError) -> CallError:
    """An input of a stream that has no form."""
    return InvalidInputError(str(error), kind="invalid_input", was_started=False)
