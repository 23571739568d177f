"""Makes this process one of a node: its socket, which is standard input, its signals, its end with the node."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import socket
import sys

from callboard._version import __version__

_PR_SET_PDEATHSIG = 1


def begin(program: str) -> socket.socket | None:
    """Makes this a process of a node, and returns its socket. None after a line that says why there is none."""
    end_with_parent()
    # The node decides when this process stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        sock = take_socket()
    except OSError as error:
        print(f"callboard.{program}: standard input is not a socket ({error}): a node starts workers", file=sys.stderr)
        return None
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # It was for the start of this process: the app's own processes find what is beside them.
    os.environ.pop("PYTHONSAFEPATH", None)
    return sock


def take_socket() -> socket.socket:
    """The socket that is standard input. User code finds an empty standard input."""
    sock = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.register_at_fork(after_in_child=sock.close)
    return sock


def end_with_parent() -> None:
    """Linux kills this process when its parent ends, even while user code holds the interpreter.

    A parent that ended before this call has closed the socket, which the watching thread sees at once.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def version() -> str:
    """This worker, for the log."""
    return f"{platform.python_implementation()} {platform.python_version()}, callboard {__version__}"
