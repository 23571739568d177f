"""Functions that run once per node: in a test client, in their process, and on a node."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from node import ENVIRONMENT, PROGRAM

import callboard as cb
from callboard import _hooks
from callboard._app import load_app
from callboard._target import TargetError
from callboard.hooks import READY

ROOT = Path(__file__).parents[2]
LIMIT = 60

APP = """
import asyncio, os
from pathlib import Path
import callboard as cb

LOG = Path(__file__).with_name("log")
BEATS = []

def note(text):
    with LOG.open("a") as log:
        print(text, file=log, flush=True)

@cb.on_start
async def connect():
    BEATS.append(asyncio.get_running_loop().create_future())
    note("connect")

@cb.on_start(timeout="30s")
def migrate():
    note("migrate")

@cb.on_stop
async def leave():
    note(f"leave {len(BEATS)}")
    raise RuntimeError("no answer")

@cb.on_stop
def delete():
    note("delete")

@cb.service
class Seen:
    def setup(self):
        note("setup")
    def cleanup(self):
        note("cleanup")
    def predict(self) -> list[str]:
        return LOG.read_text().split()
"""
FAILS = """
import callboard as cb

@cb.on_start
def connect():
    raise ConnectionError("there is no database")

@cb.function
def f() -> int:
    return 1
"""


def write(directory: Path, text: str = APP) -> Path:
    (directory / "hooked.py").write_text(text)
    return directory


def test_a_test_client_runs_the_hooks_of_the_module_around_its_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(write(tmp_path)))
    import hooked  # type: ignore[import-not-found]

    monkeypatch.delitem(sys.modules, "hooked")
    sys.modules["hooked"] = hooked
    log = tmp_path / "log"

    def expect_end() -> None:
        assert log.read_text().split("\n")[2:] == ["setup", "cleanup", f"leave {len(hooked.BEATS)}", ""]
        log.unlink()

    with pytest.raises(RuntimeError, match="no answer"), cb.test_client(hooked.Seen) as client:
        assert client.call() == ["connect", "migrate", "setup"]
    expect_end()

    async def run() -> None:
        async with cb.test_client(hooked.Seen) as client:
            assert await client.call() == ["connect", "migrate", "setup"]

    with pytest.raises(RuntimeError, match="no answer"):
        asyncio.run(run())
    expect_end()
    monkeypatch.setattr(hooked, "migrate", cb.on_start(lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError), cb.test_client(hooked.Seen):
        pass


def test_an_app_is_described_with_the_time_that_its_hooks_may_take(tmp_path: Path) -> None:
    described = load_app(str(write(tmp_path) / "hooked.py")).describe()
    target = str(tmp_path / "hooked.py")
    assert described["hooks"] == {
        "target": target,
        "start_timeout_ms": _hooks._IMPORT_MS + 600_000 + 30_000,
        "stop_timeout_ms": _hooks._END_MS + 10_000,
    }
    assert "hooks" not in load_app(str(ROOT / "python/tests/app.py")).describe()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: cb.on_start(int), "@on_start decorates a function"),
        (lambda: cb.on_stop(lambda cache: None), "has the parameter `cache`, and gets no arguments"),
    ],
)
def test_a_hook_is_a_function_without_arguments(wrong: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        wrong()


def started(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "callboard.hooks", *arguments]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=directory, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True)
    # A line that does not come is a failure, not a wait.
    limit = threading.Timer(LIMIT, process.kill)
    limit.daemon = True
    limit.start()
    return process


def test_the_process_starts_says_so_and_stops_all_in_order(tmp_path: Path) -> None:
    with started(write(tmp_path), "hooked.py") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{READY}\n"
        assert (tmp_path / "log").read_text() == "connect\nmigrate\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT)
    assert (tmp_path / "log").read_text() == "connect\nmigrate\nleave 1\ndelete\n"
    assert process.returncode == 1 and "callboard.hooks: on_stop `leave`: RuntimeError: no answer\n" in err


def test_a_failure_of_the_start_is_the_last_line_of_the_process(tmp_path: Path) -> None:
    with started(write(tmp_path, FAILS), "hooked.py") as process:
        out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (1, "")
    assert err.endswith("\ncallboard.hooks: on_start `connect`: ConnectionError: there is no database\n")


def test_a_long_start_says_what_it_waits_for(tmp_path: Path) -> None:
    text = "import time\nimport callboard as cb\n@cb.on_start\ndef download():\n    time.sleep(3600)\n"
    with started(write(tmp_path, text), "hooked.py") as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("on_start: `download` has run for ")
        finally:
            process.kill()


def test_an_interrupt_in_one_of_the_end_does_not_skip_the_others(tmp_path: Path) -> None:
    text = """
import asyncio
import callboard as cb

@cb.on_start
def redirect():
    import os
    os.dup2(2, 1)

@cb.on_stop
async def cancelled():
    raise asyncio.CancelledError

@cb.on_stop
def interrupted():
    raise KeyboardInterrupt

@cb.on_stop
def last():
    open("log", "w").write("last")
"""
    with started(write(tmp_path, text), "hooked.py") as process:
        assert process.stdout is not None
        # Its own standard output is another one by now.
        assert process.stdout.readline() == f"{READY}\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1 and (tmp_path / "log").read_text() == "last"
    for name in ("cancelled", "interrupted"):
        assert f"callboard.hooks: on_stop `{name}`: " in err


@pytest.mark.parametrize("body", ["async def late(): await asyncio.sleep(3600)", "def late(): time.sleep(3600)"])
def test_each_function_has_its_own_timeout(tmp_path: Path, body: str) -> None:
    text = f"import asyncio, time\nimport callboard as cb\n@cb.on_start(timeout='100ms')\n{body}\n"
    with started(write(tmp_path, text), "hooked.py") as process:
        out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (1, "")
    assert "callboard.hooks: on_start `late`: " in err.splitlines()[-1]
    assert err.endswith("it took longer than its timeout of 0.1 s\n")


def test_a_cancelled_start_is_told_as_a_failure(tmp_path: Path) -> None:
    text = "import asyncio\nimport callboard as cb\n@cb.on_start\nasync def f(): raise asyncio.CancelledError\n"
    with started(write(tmp_path, text), "hooked.py") as process:
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    last = err.splitlines()[-1]
    assert last.startswith("callboard.hooks: on_start `f`: ") and last.endswith("CancelledError"), err


def test_a_function_of_a_module_that_is_only_imported_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "database_of_hooks.py").write_text("import callboard as cb\n@cb.on_start\ndef connect(): ...\n")
    service = "import callboard as cb\n@cb.function\ndef f() -> int: return 1\n"
    write(tmp_path, "import database_of_hooks\n" + service)
    message = "@on_start `connect` of the module `database_of_hooks` is not found in "
    with started(tmp_path, "hooked.py") as process:
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1 and err.splitlines()[-1].startswith(f"callboard.hooks: {message}hooked.py: import ")
    with pytest.raises(TargetError, match=message):
        load_app(str(tmp_path / "hooked.py"))
    # By its name it is found.
    monkeypatch.delitem(sys.modules, "database_of_hooks")
    write(tmp_path, "from database_of_hooks import connect\n" + service)
    assert "hooks" in load_app(str(tmp_path / "hooked.py")).describe()


@pytest.mark.skipif(PROGRAM is None, reason="the program `callboard` is not built")
def test_a_node_runs_them_once_before_its_services_and_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PROGRAM is not None
    monkeypatch.setenv("PATH", str(Path(PROGRAM).parent), prepend=os.pathsep)
    app = APP.replace("@cb.service", "@cb.service(replicas=2)")
    with cb.start(str(write(tmp_path, app) / "hooked.py")) as node:
        assert node.client().call("/seen", None) == ["connect", "migrate", "setup", "setup"]
    found = (tmp_path / "log").read_text().split("\n")
    assert found == ["connect", "migrate", "setup", "setup", "cleanup", "cleanup", "leave 1", "delete", ""]


@pytest.mark.skipif(PROGRAM is None, reason="the program `callboard` is not built")
@pytest.mark.parametrize(
    "setup", ["time.sleep(3600)", "\n        while True: note('tick'); time.sleep(0.001)", "raise OSError('no model')"]
)
def test_a_start_that_ends_early_runs_the_functions_of_the_end(tmp_path: Path, setup: str) -> None:
    app = APP.replace('note("setup")', f'note("setup"); import time; {setup}')
    command = [str(PROGRAM), "serve", "hooked.py", "--http", "127.0.0.1:0"]
    environment = {**ENVIRONMENT, "VIRTUAL_ENV": sys.prefix}
    log = write(tmp_path, app) / "log"
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + LIMIT
        while not log.exists() or "setup" not in log.read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
        process.terminate()
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1, err
    lines = log.read_text().split("\n")
    assert "tick" not in lines[lines.index("leave 1") :], "its services have ended first"
    assert [line for line in lines if line != "tick"] == ["connect", "migrate", "setup", "leave 1", "delete", ""]


@pytest.mark.skipif(PROGRAM is None, reason="the program `callboard` is not built")
def test_a_node_whose_start_function_fails_ends_and_says_why(tmp_path: Path) -> None:
    command = [str(PROGRAM), "serve", "hooked.py", "--http", "127.0.0.1:0"]
    environment = {**ENVIRONMENT, "VIRTUAL_ENV": sys.prefix}
    ended = subprocess.run(
        command, cwd=write(tmp_path, FAILS), env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert ended.returncode != 0
    *lines, last = ended.stderr.splitlines()
    reason = "the process exited with code 1; on_start `connect`: ConnectionError: there is no database"
    assert last.endswith(reason) and any("Traceback" in line for line in lines), ended.stderr


@pytest.mark.skipif(PROGRAM is None, reason="the program `callboard` is not built")
@pytest.mark.parametrize("command", [["openapi"], ["examples", "--lang", "curl"]])
def test_a_description_of_the_app_runs_none_of_them(tmp_path: Path, command: list[str]) -> None:
    environment = {**ENVIRONMENT, "VIRTUAL_ENV": sys.prefix}
    write(tmp_path)
    words = [str(PROGRAM), *command, "hooked.py"]
    subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, timeout=LIMIT, check=True)
    assert (tmp_path / "log").read_text().split() == ["setup"]
