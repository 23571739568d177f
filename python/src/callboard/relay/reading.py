"""Replies are read in a process of their own, with limits of memory and time: a participant wrote their bytes.

The process starts with the evaluation, and reads one reply after the other. A reply that needs more than a limit ends
this process, or the evaluation kills it: the gateway stays, and blames the participant.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from callboard._envelope import Buffer, type_name
from callboard.relay.errors import GatewayError, InfrastructureError, InvalidReply
from callboard.relay.reading_process import READY, Answer, Start, receive, send
from callboard.relay.replies import Kind, Rows, ids_of, rows_of

if TYPE_CHECKING:
    from typing_extensions import Self

# Memory of the process for a reply, for each byte that a reply may have, and without one.
_MEMORY_FOR_A_BYTE = 16
_MEMORY = 512 << 20
# The longest time for its start, and the shortest for a reply that came just in time, in seconds.
_START_SECONDS = 60.0
_LEAST_SECONDS = 30.0

# The types of ids that are sent as they are.
_PLAIN = (type(None), bool, float, str, bytes)


class ReplyReader:
    """The process, as the gateway sees it."""

    def __init__(self, id_column: str, columns: Mapping[str, Kind], max_bytes: int, protocol: str = "http") -> None:
        self._names = id_column, columns
        self._protocol = protocol
        self._max_bytes = max_bytes
        self._has_started = False
        self._socket, theirs = socket.socketpair()
        # It finds the package where this process has found it.
        path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        # Reserved for threads and arenas, memory would count without being used.
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", "from callboard.relay.reading_process import main; main()"],
                    stdin=theirs.fileno(),
                    env={**os.environ, **environment},
                )
            except OSError as error:
                self._socket.close()
                raise InfrastructureError(f"the process that reads replies does not start: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def rows(self, reply: Buffer, ids: Any, seconds: float) -> Rows:
        """The rows of a reply, as `rows_of` has them, within this time.

        Raises `InvalidReply` if it cannot be read within the limits, and `GatewayError` for a package that is missing.
        """
        self._start()
        expected = ids_of(ids)
        until = time.monotonic() + max(seconds, _LEAST_SECONDS)
        try:
            send(self._socket, msgspec.msgpack.encode([_sendable(each) for each in expected]), until)
            send(self._socket, reply, until)
            # For each column, the texts and some bytes for each row.
            most = (1 + len(self._names[1])) * (self._max_bytes + 16 * len(expected)) + (1 << 20)
            answer = msgspec.msgpack.decode(receive(self._socket, until, most), type=Answer)
        except TimeoutError:
            raise InvalidReply("the reply was not read by its deadline") from None
        except (OSError, EOFError, msgspec.DecodeError):
            raise InvalidReply(f"the reply needs more than {self._memory} bytes of memory to be read") from None
        if answer.missing is not None:
            raise GatewayError(f"the reply cannot be read here: {answer.missing}")
        if answer.invalid is not None:
            raise InvalidReply(answer.invalid)
        return rows_of(answer.columns, expected, *self._names)

    @property
    def _memory(self) -> int:
        return _MEMORY + _MEMORY_FOR_A_BYTE * self._max_bytes

    def _start(self) -> None:
        """Waits until the process is there. Its failure is nobody's reply."""
        if self._has_started:
            return
        id_column, columns = self._names
        names = {name: kind.__name__ for name, kind in columns.items()}
        start = Start(id_column, names, self._max_bytes, self._memory, self._protocol)
        until = time.monotonic() + _START_SECONDS
        try:
            send(self._socket, msgspec.msgpack.encode(start), until)
            self._has_started = receive(self._socket, until, len(READY)) == READY
        except (OSError, EOFError) as error:
            raise InfrastructureError(f"the process that reads replies does not start: {error}") from error


def _sendable(value: Any) -> Any:
    is_plain = type(value) in _PLAIN or (type(value) is int and -(2**63) <= value < 2**63)
    return value if is_plain else (type_name(value), repr(value))
