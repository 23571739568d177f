"""The fork server as a real child process that speaks its protocol."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from node import ENVIRONMENT, HERE, TIMEOUT_SECONDS, Node

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a node starts it on Linux only")


class Server:
    """A fork server, from its start to its end."""

    def __init__(self, target: str, kind: str = "", settings: dict[str, Any] | None = None) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.child = subprocess.Popen(
            [sys.executable, "-m", "callboard.fork_server", target],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=HERE,
            env={**ENVIRONMENT, "TEST_IMPORT": kind},
            text=True,
        )
        theirs.close()
        self.started = self.ask(
            {"type": "start", "protocol": 1, "max_bytes": 1 << 20, "stage": "s", "settings": settings}
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.child.kill()
        self.child.communicate()

    def ask(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> dict[str, Any]:
        socket.send_fds(self.socket, [msgspec.msgpack.encode(message)], descriptors)
        answer: dict[str, Any] = msgspec.msgpack.decode(self.socket.recv(1 << 20))
        return answer

    def fork(self, target: str = "", **start: Any) -> Replica:
        ours, theirs = socket.socketpair()
        lines, output = os.pipe()
        fork = {"type": "fork", "target": target} if target else {"type": "fork"}
        answer = self.ask(fork, (theirs.fileno(), output))
        theirs.close()
        os.close(output)
        assert answer["type"] == "forked", answer
        return Replica(self, answer["pid"], ours, lines, start)

    def end(self) -> tuple[int, str]:
        self.socket.close()
        out, _ = self.child.communicate(timeout=TIMEOUT_SECONDS)
        return self.child.returncode, out


class Replica(Node):
    """A node's side of a forked replica."""

    def __init__(self, server: Server, pid: int, sock: socket.socket, lines: int, start: dict[str, Any]) -> None:
        self.server, self.pid, self.socket, self.lines = server, pid, sock, lines
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.logs = []
        self.send({"type": "start", "protocol": 1, "max_bytes": 1 << 20, "stage": "s", **start})

    def printed(self) -> str:
        """All that it prints, until it ends."""
        with open(self.lines) as lines:
            return lines.read()

    def status(self) -> int:
        answer = self.server.ask({"type": "reap", "pid": self.pid})
        assert answer["type"] == "ended", answer
        status: int = answer["status"]
        return status


@pytest.fixture
def server() -> Iterator[Server]:
    with Server("forks.py:Own") as server:
        assert (server.started["type"], server.started["protocol"]) == ("ready", 1)
        assert "callboard" in server.started["worker"]
        yield server


def test_replicas_share_the_import_and_have_a_group_pipe_and_setup_of_their_own(server: Server) -> None:
    replicas = [server.fork(settings={"device": f"cuda:{index}"}).ready() for index in range(3)]
    for index, replica in enumerate(replicas):
        assert replica.call("pids") == [[server.child.pid, replica.pid, replica.pid, replica.pid]]
        replica.send({"type": "stop"})
        assert replica.printed() == f"set up on cuda:{index}\nasked for pids\n"
        assert replica.status() == 0
    assert server.end() == (0, "imported\nno end of line")


def test_replicas_of_several_services_share_one_import() -> None:
    with Server("forks.py") as server:
        assert server.started["type"] == "ready"
        own = server.fork("forks.py:Own").ready().call("who")
        shared = server.fork("forks.py:Shared").ready().call("who")
        assert own[0][0] == shared[0][0] == server.child.pid
        # Its `setup` is run by each replica, where the import is not its own.
        assert shared[0][1] == shared[0][2] != own[0][2]
        missing = server.fork("forks.py:Missing")
        assert missing.receive()[0]["message"] == "forks has no 'Missing'"


def test_the_status_of_a_replica_is_that_of_its_end(server: Server) -> None:
    replica = server.fork().ready()
    os.kill(replica.pid, signal.SIGKILL)
    assert replica.printed() == "set up on cpu\n"
    assert os.WTERMSIG(replica.status()) == signal.SIGKILL
    assert server.fork().ready().call("x")[0][0] == server.child.pid


def test_replicas_have_random_numbers_of_their_own(server: Server) -> None:
    first, second = (server.fork().ready().call("random")[0] for _ in range(2))
    assert first[0] != second[0] and first[1] != second[1]


def test_an_import_may_set_the_level_of_its_log() -> None:
    with Server("forks.py:Own", "debug") as server:
        replica = server.fork().ready()
        replica.call("log")
        assert [(record["level"], record["message"]) for record in replica.logs] == [("debug", "a detail")]


def test_a_replica_has_no_descriptors_of_the_others(server: Server) -> None:
    first, second = server.fork().ready(), server.fork().ready()
    first.socket.close()
    assert first.printed() and first.status() == 0
    second.call("x")


def test_a_fork_server_takes_its_replicas_along(server: Server) -> None:
    replicas = [server.fork().ready() for _ in range(2)]
    server.child.kill()
    for replica in replicas:
        assert replica.printed() == "set up on cpu\n"
        with pytest.raises((EOFError, ConnectionResetError)):
            replica.receive()


def test_a_shared_setup_runs_once() -> None:
    with Server("forks.py:Shared", settings={"device": "cuda:7"}) as server:
        for _ in range(2):
            replica = server.fork(settings={"device": "cuda:7"}).ready()
            assert replica.call("pids") == [[server.child.pid, server.child.pid, replica.pid, replica.pid]]
        head, _ = server.fork(settings={"device": "cuda:8"}).receive()
        assert head["message"] == "TypeError: Shared: share_setup needs the same settings for all replicas"
        assert server.end()[1].endswith("set up on cuda:7\n")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("forks.py:Fails", "FileNotFoundError: model.bin"),
        ("forks.py:Missing", "forks has no 'Missing'"),
        ("forks.py:AsyncSetup", "TypeError: AsyncSetup: share_setup needs a `def setup`"),
        ("forks.py:OfReplica", "TypeError: OfReplica: with share_setup, `setup` has no `replica`"),
    ],
)
def test_what_cannot_be_prepared_is_reported(target: str, message: str) -> None:
    with Server(target) as server:
        assert server.started["type"] == "failed"
        assert server.started["message"].startswith(message)
        assert "Traceback" in server.started["trace"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("thread", "a fork would lose threads that its import has started (poller)"),
        ("cuda", "its import has initialised CUDA, which a fork cannot use"),
        ("signal", "its import has set what SIGCHLD does, by which the ends of forked replicas would be lost"),
        ("trial", "a fork for trial has failed: OSError: no more processes"),
    ],
)
def test_where_a_fork_is_not_safe_it_says_why(kind: str, reason: str) -> None:
    with Server("forks.py:Own", kind) as server:
        assert server.started == {"type": "refused", "message": reason}


def test_a_shared_setup_that_starts_threads_is_named() -> None:
    reason = "a fork would lose threads that its import or its `setup` (share_setup) has started (loader)"
    with Server("forks.py:Threads") as server:
        assert server.started == {"type": "refused", "message": reason}


def test_the_threads_of_numpy_do_not_matter() -> None:
    with Server("forks.py:Own", "numpy") as server:
        assert server.started["type"] == "ready"
        for _ in range(2):
            assert server.fork().ready().call("matrix") == [[300.0]]


def test_an_import_that_exits_ends_the_fork_server() -> None:
    with pytest.raises(msgspec.DecodeError), Server("forks.py:Own", "exit"):
        pass


def test_a_fork_server_needs_a_socket() -> None:
    command = [sys.executable, "-m", "callboard.fork_server", "forks.py:Own"]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, cwd=HERE, env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("callboard.fork_server: standard input is not a socket")
