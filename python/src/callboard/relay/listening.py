"""A gateway that a participant may ask: a server on the relay's own wire, inside of the gateway's process.

It answers one request after the other, while the gateway waits for the participant. An exception has the text that
clients of a relay read, and the server goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from callboard.relay.calling import grpc_package
from callboard.relay.payload import SERVICE, read_request, response

if TYPE_CHECKING:
    from typing_extensions import Self

# The most bytes of a request: a participant may send anything.
_MAX_REQUEST_BYTES = 64 << 20


class Listener:
    """Answers calls of these functions at an address, such as `"[::]:50052"`; port 0 is any free one."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]], address: str) -> None:
        """Raises `OSError` for an address that is in use."""
        grpc, self._functions = grpc_package(), dict(functions)
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
            # Clients of the relay ping each minute, also without calls.
            ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.keepalive_permit_without_calls", 1),
            # Else two servers may share one port, and a port in use is no error.
            ("grpc.so_reuseport", 0),
        ]
        self._server = grpc.server(ThreadPoolExecutor(max_workers=1), options=options)
        send = grpc.unary_unary_rpc_method_handler(self._answer)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Send": send}),))
        try:
            self.port: int = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"{address}: {error}") from None
        if not self.port:
            raise OSError(f"{address}: the address is in use")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None)

    def _answer(self, data: bytes, _: Any) -> bytes:
        """The answer of a function. grpcio makes the text of an exception."""
        name, args, kwargs = read_request(data)
        function = self._functions.get(name)
        if function is None:
            raise NotImplementedError(f"No listener for {name[:200]} was registered.")
        return response(function(*args, **kwargs))
