"""A running server of a peer: its processes, their processor time and memory."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from cases import Request
from peers import Peer

TICK = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


class NotReady(Exception):
    """A server did not answer as it should."""


@dataclasses.dataclass
class Server:
    peer: Peer
    process: subprocess.Popen[bytes]
    port: int
    # Of the service: who its workers are, and what they did.
    directory: Path
    token: str

    def tree(self) -> list[int]:
        """All processes of the server: those with the variable that it was started with, and their descendants."""
        parents: dict[int, int] = {}
        own: set[int] = {self.process.pid}
        for entry in PROC.iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, IndexError, ValueError):
                # The name of a process may hold anything, also a bracket.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                if fields[0] != "Z" and self.token.encode() in (entry / "environ").read_bytes():
                    own.add(int(entry.name))
        grown = True
        while grown:
            found = {pid for pid, parent in parents.items() if parent in own and pid not in own}
            own |= found
            grown = bool(found)
        return [pid for pid in own if pid in parents]

    def cpu_seconds(self) -> float:
        """The processor time that all processes have taken until now."""
        total = 0
        for pid in self.tree():
            with contextlib.suppress(OSError):
                fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:13]))
        return total / TICK

    def memory_bytes(self) -> int:
        """The memory of all processes; a page of several counts once."""
        total = 0
        for pid in self.tree():
            with contextlib.suppress(OSError):
                lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
        return total

    def workers(self) -> list[int]:
        """The processes that run the model, and live."""
        pids = [int(path.name.removeprefix("worker-")) for path in self.directory.glob("worker-*")]
        return [pid for pid in pids if is_alive(pid)]

    def ledger(self) -> list[tuple[str, float]]:
        """What the model has noted, and when."""
        path = self.directory / "ledger"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(word, float(at)) for word, at, _ in map(str.split, lines)]

    def post(self, request: Request, timeout: float = 10) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("POST", request.path, request.body, request.headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def wait(self, request: Request) -> None:
        """Waits for the first right answer."""
        until = time.monotonic() + self.peer.start_seconds
        problem = "no answer"
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise NotReady(f"ended with code {self.process.returncode}: {self.output()}")
            try:
                status, body = self.post(request)
            except (OSError, http.client.HTTPException) as error:
                problem = repr(error)
                time.sleep(0.05)
                continue
            if status == 200 and request.answer in body:
                return
            problem = f"status {status}: {body[:300]!r}"
            # Some listen before their workers are ready.
            time.sleep(0.2)
        raise NotReady(f"{problem}; {self.output()}")

    def output(self) -> str:
        return (self.directory / "output").read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        """Ends all processes: first as the server would like it, then as it must be."""
        known = self.tree()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(3)
        for pid in {*known, *self.tree()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def is_alive(pid: int) -> bool:
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def serve(
    peer: Peer,
    case: str,
    request: Request,
    environment: Path,
    variables: dict[str, str],
    processes: int,
    *,
    bounded: bool,
) -> Iterator[Server]:
    """Starts a server of one case, and ends it with all its processes."""
    with tempfile.TemporaryDirectory(prefix=f"peers-{peer.name}-", ignore_cleanup_errors=True) as name:
        directory, token, port = Path(name), uuid.uuid4().hex, free_port()
        program = [environment / "bin" / "python", peer.script, case, "--port", port, "--processes", processes]
        program += ["--bounded"] if bounded else []
        own = {
            "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(environment),
            "PEERS_DIRECTORY": name,
            "PEERS_TOKEN": token,
            "PYTHONDONTWRITEBYTECODE": "1",
            **peer.variables,
            **variables,
        }
        with (directory / "output").open("wb") as output:
            process = subprocess.Popen(
                [str(word) for word in program],
                cwd=peer.script.parent,
                # A variable of Callboard that is meant for something else would be a setting.
                env={name: value for name, value in os.environ.items() if not name.startswith("CALLBOARD_")} | own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        server = Server(peer, process, port, directory, token)
        try:
            server.wait(request)
            yield server
        finally:
            server.stop()
