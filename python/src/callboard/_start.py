"""The node that `start` of `_run.py` runs: a node in the background of a notebook or a script, which ends with it.

The node is a process of its own, apart from the signals of this one: an interrupted cell leaves it alone. It ends by
`stop`, and with this interpreter, however that ends: `_keeper.py` sees to it.
"""

from __future__ import annotations

import atexit
import contextlib
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from callboard.client import AsyncClient, Client

_KEEPER = Path(__file__).with_name("_keeper.py")
# In the form of text a line of its own; in that of JSON a part of one.
_LISTENING = re.compile(r"(?:^|\\n) +listening on (https?://[^\s\\]+)")


class StartedNode:
    """The result of `start`: a node that runs until `stop`, the end of its `with`, or the end of this interpreter."""

    def __init__(self, command: list[str], variables: dict[str, str], timeout: float | None = None) -> None:
        self._url = ""
        self._told = threading.Event()
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", str(_KEEPER), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=variables,
            # The interrupt of a kernel, or Ctrl-C, goes to all of a group.
            start_new_session=True,
        )
        atexit.register(self.stop)
        self._reader = threading.Thread(target=self._read, args=(self._keeper.stdout,), daemon=True)
        self._reader.start()
        try:
            if not self._told.wait(timeout):
                raise TimeoutError(f"the node was not ready within {timeout:g} s: its log says what it waits for")
        except BaseException:
            self.stop()
            raise
        if not self._url:
            self.stop()
            raise RuntimeError(f"the node ended with code {self._keeper.returncode}: its log says why")

    @property
    def url(self) -> str:
        """Where it serves, such as `http://127.0.0.1:39283`."""
        return self._url

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._keeper.poll() is None

    def client(self, **settings: Any) -> Client:
        """A `Client` of this node."""
        return Client(self._url, **settings)

    def async_client(self, **settings: Any) -> AsyncClient:
        """An `AsyncClient` of this node."""
        return AsyncClient(self._url, **settings)

    def stop(self) -> None:
        """Ends the node after its calls, and waits for that. Again, it does nothing."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        self._reader.join()
        atexit.unregister(self.stop)

    def __enter__(self) -> StartedNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read(self, lines: IO[bytes]) -> None:
        with lines:
            # A line without an end does not fill the memory.
            while line := lines.readline(1 << 16).decode(errors="replace"):
                # A node whose log nobody reads would stand still.
                with contextlib.suppress(ValueError, OSError):
                    print(line, end="", flush=True)
                found = None if self._url else _LISTENING.search(line)
                if found:
                    self._url = found[1]
                    self._told.set()
        self._told.set()
