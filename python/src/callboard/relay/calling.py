"""Calls of functions behind an evaluation relay's own wire: over gRPC, one at a time.

* **Start:** the server may come later, on any of several ports. Until the first answer a channel is opened to one port
  after the other; `UNAVAILABLE` alone means that there is no server yet. It ends early when the name of the host is
  gone.
* **Late:** the first call may take what is left of the start-up wait and the timeout together, so the other side may
  load a model in it.
* **Lost:** `UNAVAILABLE` of a later call is a lost connection, after the few retries of the channel.
"""

from __future__ import annotations

import json
import re
import socket
import time
from typing import TYPE_CHECKING, Any

from callboard._envelope import Buffer, MissingPackageError
from callboard._exceptions import CallError
from callboard.client.errors import to_error
from callboard.client.policy import REPLY_TOO_LARGE
from callboard.client.transport import CONNECTION_LOST, Failure
from callboard.relay.payload import SEND, read_response, request

if TYPE_CHECKING:
    from typing_extensions import Self

# The ports of a server, in the order in which they are tried; of a given port, it and five that follow.
PORTS = (50051, *range(60053, 60153, 10))
_FOLLOWING = 5
# The pause between two tries, in seconds: with eleven ports each one is tried about once a second.
_PAUSE = 1 / 11
_RETRIES = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
_RAISED = re.compile(r"Exception calling application: (.*)", re.DOTALL)
_NO_LISTENER = re.compile(r"No listener for .* was registered")


def grpc_package() -> Any:
    try:
        import grpc
    except ImportError:
        raise MissingPackageError("the relay over gRPC needs grpcio and protobuf: install `callboard[relay]`") from None
    return grpc


class RelayClient:
    """A client of a server of evaluations: `host`, or `host:port`.

    `start_up_wait` and `deadline` are seconds. A reply has at most `max_reply_bytes`. With `exact_floats` a `float`
    keeps its 64 bits, as a scalar of NumPy; else it has 32, as every sender of a relay sends it.
    """

    def __init__(
        self,
        address: str = "localhost",
        *,
        start_up_wait: float = 900.0,
        deadline: float = 3600.0,
        max_reply_bytes: int = 64 << 20,
        exact_floats: bool = False,
    ) -> None:
        host, _, port = address.removeprefix("grpc://").rpartition(":")
        is_alone = not host or port.endswith("]")
        self._host = address.removeprefix("grpc://") if is_alone else host
        try:
            self._ports = PORTS if is_alone else tuple(range(int(port), int(port) + _FOLLOWING + 1))
        except ValueError:
            raise ValueError(f"address={address!r}: a host, or host:port") from None
        self._start_up_wait, self._deadline = start_up_wait, deadline
        self._max_reply_bytes = max_reply_bytes
        self._exact_floats = exact_floats
        self._channel: Any = None
        self._grpc = grpc_package()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def prepare(self, name: str, *args: Any, **kwargs: Any) -> bytes:
        """The encoded call of a function, such as the next one while a call runs. Raises `TypeError`."""
        return request(name, args, kwargs, exact_floats=self._exact_floats)

    def send(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a function. Its frames have the types of their libraries. Raises `CallError`."""
        timeout = self._deadline if self._channel is not None else self._start_up_wait + self._deadline
        return read_response(self.reply(self.prepare(name, *args, **kwargs), timeout), 1 << 30, is_as_sent=True)

    def reply(self, call: bytes, timeout: float) -> Buffer:
        """The bytes of a reply. Raises `CallError`."""
        if self._channel is None:
            return self._first(call, time.monotonic() + timeout)
        try:
            return self._send(self._channel, call, timeout)
        except self._grpc.RpcError as error:
            raise self._error(error) from error

    def _first(self, call: bytes, until: float) -> Buffer:
        """The first reply, from the first port that has a server."""
        limit, attempt, was_known = time.monotonic() + self._start_up_wait, 0, False
        while True:
            channel = self._open(self._ports[attempt % len(self._ports)])
            try:
                reply = self._send(channel, call, max(0.001, until - time.monotonic()))
                self._channel = channel
                return reply
            except self._grpc.RpcError as error:
                if error.code() != self._grpc.StatusCode.UNAVAILABLE:
                    self._channel = channel
                    raise self._error(error) from error
                channel.close()
                reason = error.details()
            except BaseException:
                channel.close()
                raise
            is_known = self._is_known()
            if was_known and not is_known:
                raise _of("unavailable", f"the host {self._host} is gone: {reason}", CONNECTION_LOST)
            if not is_known or time.monotonic() >= limit:
                wait = f"within {self._start_up_wait:.0f} s" if is_known else "because its name is not known"
                raise _of("unavailable", f"{self._host} has not answered {wait}: {reason}")
            was_known, attempt = True, attempt + 1
            time.sleep(_PAUSE)

    def _is_known(self) -> bool:
        try:
            socket.getaddrinfo(self._host.strip("[]"), None)
        except OSError:
            return False
        return True

    def _open(self, port: int) -> Any:
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", self._max_reply_bytes),
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
            ("grpc.service_config", json.dumps(_RETRIES)),
            # A channel of its own for each try.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        return self._grpc.insecure_channel(f"{self._host}:{port}", options=options)

    def _send(self, channel: Any, call: bytes, timeout: float) -> Buffer:
        reply: bytes = channel.unary_unary(SEND)(call, timeout=timeout, wait_for_ready=False)
        return reply

    def _error(self, error: Any) -> CallError:
        """The error of a status, by the two texts that a server of evaluations has."""
        code, details, codes = error.code(), error.details() or "", self._grpc.StatusCode
        if _NO_LISTENER.search(details):
            return _of("not_found", details)
        if raised := _RAISED.search(details):
            return _of("failed", raised[1])
        if code == codes.UNAVAILABLE:
            return _of("unavailable", details, CONNECTION_LOST)
        if code == codes.DEADLINE_EXCEEDED:
            return _of("deadline_exceeded", details)
        if code == codes.RESOURCE_EXHAUSTED and "received message" in details.lower():
            return _of("internal", f"it exceeds max_reply_bytes = {self._max_reply_bytes}", REPLY_TOO_LARGE)
        if code == codes.RESOURCE_EXHAUSTED:
            return to_error(Failure("invalid_input", details, status=413))
        return _of("invalid_input" if code == codes.INVALID_ARGUMENT else "internal", f"{code.name}: {details}")


def _of(kind: str, message: str, error_type: str | None = None) -> CallError:
    return to_error(Failure(kind, message, error_type=error_type))
