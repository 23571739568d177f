"""A fork server: `python -m callboard.fork_server TARGET` imports a file or module once, and forks replicas from it.

Without a name in the target each fork says what its replica serves; with one, all serve this. A replica that is forked
has all that the import made, in memory that it shares until it is written. The protocol is "A fork server" of
`docs/worker-protocol.md`. This process runs one thread, and no code of the service after the import, and after `setup`
where the service shares it.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import msgspec

from callboard import worker
from callboard._errors import failed
from callboard._hooks import setup_context
from callboard._logs import set_log_level
from callboard._messages import PROTOCOL, Start
from callboard._process import begin, end_with_parent, version
from callboard._runner import setup_arguments
from callboard._said import said
from callboard._target import load_module, route_of, split
from callboard.worker import Prepared

_MAX_MESSAGE_BYTES = 1 << 20
_TASKS = "/proc/self/task"

_encode = msgspec.msgpack.Encoder().encode


class Fork(msgspec.Struct, tag="fork", tag_field="type"):
    """Comes with two descriptors: the socket of the replica, and the pipe that it prints to."""

    target: str = ""


class Reap(msgspec.Struct, tag="reap", tag_field="type"):
    pid: int


_decode = msgspec.msgpack.Decoder(Start | Fork | Reap).decode


class ForkServer:
    """Answers each message of the node with one message."""

    def __init__(self, control: socket.socket, target: str) -> None:
        self._control = control
        self._target = target
        self._prepared: Prepared | None = None
        # The code that has run here, for reasons not to fork.
        self._code = "its import"

    def serve(self) -> tuple[socket.socket, str, Prepared] | None:
        """None at the end of the node's socket. In a forked process: its socket, its target, and what is prepared."""
        try:
            return self._serve()
        except (BrokenPipeError, ConnectionResetError):
            # The node has given this server up, or has ended.
            return None

    def _serve(self) -> tuple[socket.socket, str, Prepared] | None:
        while True:
            content, descriptors, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE_BYTES, 2)
            if not content:
                return None
            message = _decode(content)
            if isinstance(message, Start):
                self._send(self._start(message))
            elif isinstance(message, Reap):
                _, status = os.waitpid(message.pid, 0)
                self._send({"type": "ended", "status": status})
            else:
                with _closed(descriptors):
                    answer = self._fork(*descriptors)
                    if isinstance(answer, socket.socket):
                        assert self._prepared is not None
                        return answer, message.target or self._target, self._prepared
                self._send(answer)

    def _send(self, message: dict[str, Any]) -> None:
        self._control.send(_encode(message))

    def _start(self, start: Start) -> dict[str, Any]:
        try:
            if start.protocol != PROTOCOL:
                raise RuntimeError(f"protocol {start.protocol}: this fork server speaks {PROTOCOL}")
            # The lines of a replica come with their level; these are lines on standard error.
            logging.basicConfig(format="%(message)s")
            set_log_level(start.settings or {})
            self._prepared = self._prepare(start)
            if self._prepared.set_up_for is not None:
                self._code = "its import or its `setup` (share_setup)"
            reason = _why_not(self._code)
        except Exception as error:
            return failed(error)
        if reason is not None:
            return {"type": "refused", "message": reason}
        # The collector writes to each object that it looks at, and so would copy the memory of all of them.
        gc.collect()
        if hasattr(gc, "freeze"):
            gc.freeze()
        return {"type": "ready", "protocol": PROTOCOL, "worker": version()}

    def _prepare(self, start: Start) -> Prepared:
        source, name = split(self._target)
        module = load_module(source)
        if not name:
            return Prepared(module)
        route = route_of(module, self._target)
        if not route.service.share_setup:
            return Prepared(module, route)
        instance = route.instance()
        setup = getattr(instance, "setup", None)
        if inspect.iscoroutinefunction(setup):
            raise TypeError(f"{route.name}: share_setup needs a `def setup`: a forked process has no event loop")
        if setup is not None:
            if start.progress:
                self._send({"type": "starting", "phase": "setup"})
            arguments = setup_arguments(setup, setup_context(route, start, instance))
            if "replica" in arguments:
                raise TypeError(f"{route.name}: with share_setup, `setup` has no `replica`: it runs once for all")
            setup(**arguments)
        return Prepared(module, route, instance, start)

    def _fork(self, sock: int, output: int) -> dict[str, Any] | socket.socket:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        try:
            reason = _why_not(self._code)
            if reason is not None:
                return {"type": "refused", "message": reason}
            pid = os.fork()
        except OSError as error:
            return {"type": "failed", "message": f"it cannot fork: {error}", "trace": ""}
        if pid == 0:
            return _become_replica(parent, sock, output)
        # Both sides do it; the first one counts.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return {"type": "forked", "pid": pid}


def _become_replica(parent: int, sock: int, output: int) -> socket.socket:
    """In the forked process: what a process that the node starts has from its start."""
    os.setpgid(0, 0)
    end_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # Python's own generator has done it. `numpy.random.default_rng()` of the import is the service's own.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    own = socket.socket(fileno=os.dup(sock))
    os.register_at_fork(after_in_child=own.close)
    return own


@contextlib.contextmanager
def _closed(descriptors: list[int]) -> Iterator[None]:
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


# ---- Where a fork is not safe ----------------------------------------------------------------------------------------


def _why_not(code: str) -> str | None:
    """Why this process cannot be forked, after this code has run; None if it can.

    A fork has the thread that forks and no other, but the locks that the others held.
    """
    if not os.path.isdir(_TASKS):
        return f"without {_TASKS} its threads cannot be counted"
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL:
        return f"{code} has set what SIGCHLD does, by which the ends of forked replicas would be lost"
    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if names:
        return f"a fork would lose threads that {code} has started ({', '.join(names[:8])})"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return f"{code} has initialised CUDA, which a fork cannot use"
    if _threads() > 1:
        # Some libraries end their threads before a fork, such as OpenBLAS, which NumPy uses.
        try:
            _fork_for_nothing()
        except Exception as error:
            return f"a fork for trial has failed: {type(error).__name__}: {said(error)}"
    others = _threads() - 1
    return f"a fork would lose {others} threads of a library that {code} has started" if others else None


def _threads() -> int:
    return len(os.listdir(_TASKS))


def _fork_for_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


# ---- The process -----------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m callboard.fork_server TARGET, such as app.py:Name", file=sys.stderr)
        return 2
    control = begin("fork_server")
    if control is None:
        return 2
    forked = ForkServer(control, arguments[0]).serve()
    return 0 if forked is None else worker.serve(*forked)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
