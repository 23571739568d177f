"""`cb.start`: a node in the background, by the real program; another interpreter stands for the kernel."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from node import ENVIRONMENT, PROGRAM

LIMIT = 120
APP = """
import callboard as cb

@cb.function
def add(a: int) -> int:
    print("adding", a, flush=True)
    return a + 1
"""
CELL = """
import signal
import sys
import callboard as cb

# As in a kernel, also where the tests run in the background of a shell, which ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)

def say(text):
    # In one piece: the log of the node is printed at the same time.
    sys.stdout.write(f"{text}\\n")
    sys.stdout.flush()

node = cb.start("app.py")
say(f"serves {node.url}")
"""
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="the program `callboard` is not built")


@contextlib.contextmanager
def kernel(directory: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    assert PROGRAM is not None
    (directory / "app.py").write_text(APP)
    environment = {**ENVIRONMENT, "PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}"}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=directory,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def line_with(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if word in line:
            return line
    raise AssertionError("".join(seen))


def test_a_node_in_the_background_answers_logs_and_stops(tmp_path: Path) -> None:
    calls = 'say("out %d" % node.client().call("/add", 41))\nnode.stop()\nnode.stop()\nsay(f"runs {node.is_running}")\n'
    with kernel(tmp_path, CELL + calls) as started:
        printed, _ = started.communicate(timeout=LIMIT)
    assert started.returncode == 0, printed
    assert "adding 41" in printed and "out 42" in printed and "runs False" in printed, printed


def test_the_address_is_found_in_any_form_of_the_log(tmp_path: Path) -> None:
    code = (
        'import callboard as cb\nwith cb.start("app.py", log_format="json", log="error") as node: print("at", node.url)'
    )
    with kernel(tmp_path, code) as started:
        printed, _ = started.communicate(timeout=LIMIT)
    assert "at http://127.0.0.1:" in printed, printed


def test_a_node_in_the_background_waits_for_no_load_balancer(tmp_path: Path) -> None:
    with kernel(tmp_path, CELL + "node.stop()\n") as started:
        printed, _ = started.communicate(timeout=LIMIT)
    assert "SIGTERM: finishing the running calls" in printed, printed


def test_an_interrupted_cell_leaves_the_node_alone(tmp_path: Path) -> None:
    cell = """
try:
    say("waits")
    input()
except KeyboardInterrupt:
    say("out %d" % node.client().call("/add", 1))
node.stop()
"""
    with kernel(tmp_path, CELL + cell) as started:
        line_with(started, "waits")
        os.killpg(started.pid, signal.SIGINT)
        printed, _ = started.communicate(timeout=LIMIT)
    assert started.returncode == 0 and "out 2" in printed, printed


def test_an_interrupt_of_a_jupyter_kernel_ends_its_cell_and_leaves_the_node_alone(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    manager = pytest.importorskip("jupyter_client").KernelManager()
    assert PROGRAM is not None
    (tmp_path / "app.py").write_text(APP)
    environment = {**ENVIRONMENT, "PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    manager.start_kernel(cwd=tmp_path, env=environment)
    client = manager.client()
    client.start_channels()
    printed: list[str] = []

    def run(cell: str, interrupt_at: str | None = None) -> str:
        """The status of the cell, or the name of its error."""
        request = client.execute(cell)
        printed.clear()
        while True:
            message = client.get_iopub_msg(timeout=LIMIT)
            content = message["content"]
            # The log of the node comes from a thread, which belongs to no cell.
            printed.append(content.get("text", ""))
            if interrupt_at and interrupt_at in "".join(printed):
                interrupt_at = None
                manager.interrupt_kernel()
            if content.get("execution_state") == "idle" and message["parent_header"].get("msg_id") == request:
                break
        while True:
            reply = client.get_shell_msg(timeout=LIMIT)
            if reply["parent_header"].get("msg_id") == request:
                return str(reply["content"].get("ename", reply["content"]["status"]))

    def reads(*texts: str) -> bool:
        """Waits for texts: the log of a cell may come after its end."""
        while not all(text in "".join(printed) for text in texts):
            printed.append(client.get_iopub_msg(timeout=LIMIT)["content"].get("text", ""))
        return True

    try:
        client.wait_for_ready(timeout=LIMIT)
        assert run(CELL) == "ok" and reads("serves http")
        endless = 'import time\nsay("waits")\nwhile True:\n    time.sleep(0.1)'
        assert run(endless, interrupt_at="waits") == "KeyboardInterrupt"
        assert run('say("out %d" % node.client().call("/add", 1))') == "ok"
        assert reads("out 2", "adding 1")
        assert run("node.stop()") == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_node_ends_with_a_kernel_that_is_killed(tmp_path: Path) -> None:
    with kernel(tmp_path, CELL + "input()\n") as started:
        url = urlsplit(line_with(started, "serves http").split()[1])
        with socket.create_connection((url.hostname, url.port), timeout=LIMIT) as open_connection:
            started.kill()
            # The end of the node is the end of its connections.
            assert open_connection.recv(1) == b""


def test_a_node_that_does_not_start_says_why(tmp_path: Path) -> None:
    with kernel(tmp_path, "import callboard as cb\ncb.start('absent.py')\n") as started:
        printed, _ = started.communicate(timeout=LIMIT)
    assert "RuntimeError: the node ended with code" in printed and "absent.py" in printed, printed


def test_a_node_that_is_not_ready_in_time_ends(tmp_path: Path) -> None:
    code = """
import os, time
import callboard as cb
if __name__ == "__main__":
    cb.start("slow.py", timeout="2s")
"""
    slow = "import time\nimport callboard as cb\n@cb.service\nclass Slow:\n    def setup(self): time.sleep(1000)\n"
    (tmp_path / "slow.py").write_text(slow + "    def predict(self, a: int) -> int: ...\n")
    with kernel(tmp_path, code) as started:
        printed, _ = started.communicate(timeout=LIMIT)
    assert "TimeoutError: the node was not ready within 2 s" in printed, printed
