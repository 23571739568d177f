"""Look-ups of host names that their caller can leave.

Nothing ends a search of the system: a thread of its own goes on with it. At most `LOOKUPS` searches of a process run at
the same time, also after their callers have left. Beyond that a look-up waits for its turn, or is refused.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from concurrent.futures import Future
from typing import Any

LOOKUPS = 64


class TooManyLookups(Exception):
    """No search has ended in time."""


@functools.lru_cache(maxsize=1)
def turns(pid: int) -> threading.Semaphore:
    """The permits that the searches of this process share. A forked process has no threads of its parent."""
    return threading.Semaphore(LOOKUPS)


def look_up(host: str, port: int, seconds: float | None, *, waits: bool) -> list[Any]:
    """The addresses of a name, as `getaddrinfo` has them. Without seconds it takes as long as the system does.

    With `waits` it waits for its turn, within its seconds. Raises `OSError`, or `TimeoutError` of `concurrent.futures`.
    """
    end = None if seconds is None else time.monotonic() + seconds
    turn = turns(os.getpid())
    if not turn.acquire(timeout=seconds if waits else 0):
        raise TooManyLookups("too many names are looked up at this time")
    future: Future[list[Any]] = Future()

    def search() -> None:
        try:
            future.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except UnicodeError:
            future.set_exception(socket.gaierror(socket.EAI_NONAME, f"{host[:200]!r} is no name of a host"))
        except BaseException as error:
            future.set_exception(error)
        finally:
            turn.release()

    try:
        threading.Thread(target=search, name="callboard-look-up", daemon=True).start()
    except BaseException:
        turn.release()
        raise
    return future.result(None if end is None else max(0.0, end - time.monotonic()))
