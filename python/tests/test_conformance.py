"""The conformance suite passes good workers, and names what a bad one breaks."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from node import ENVIRONMENT, HERE

from callboard.conformance._checks import CHECKS, SHARED_MEMORY, failure

NAMES = [name for name, _ in CHECKS]
STREAMING = ("a call that streams", "a stream that fails", "a stream whose item is cancelled")
CALLING = ("two calls", "a call that fails", "a call whose item is cancelled", "a result of no call", *STREAMING)
WITHOUT_CALLS = [f"skipped {name}: it does not call" if name in CALLING else f"ok {name}" for name in NAMES]
WORKER_JS = HERE.parents[1] / "examples/worker-js/worker.js"


def suite(*command: str, timeout: str = "20") -> tuple[int, list[str]]:
    """The exit code, and the lines of the results."""
    arguments = [sys.executable, "-m", "callboard.conformance", "--timeout", timeout, *command]
    done = subprocess.run(arguments, cwd=HERE, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, timeout=300)
    return done.returncode, done.stdout.splitlines()


def test_the_worker_of_this_package_passes() -> None:
    assert suite(sys.executable, "-m", "callboard.worker", "echo.py:echo") == (0, WITHOUT_CALLS)


def test_a_worker_of_this_package_that_calls_passes() -> None:
    command = (sys.executable, "-m", "callboard.worker", "echo.py:Caller")
    assert suite(*command) == (0, [f"ok {name}" for name in NAMES])


def test_a_worker_that_reads_no_streams_is_told_so() -> None:
    _, lines = suite(sys.executable, "-m", "callboard.worker", "echo.py:OldCaller")
    skipped = [f"skipped {name}: it does not read streams" for name in STREAMING]
    assert [line for line in lines if not line.startswith("ok")] == skipped


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_worker_in_javascript_passes() -> None:
    lines = [
        f"skipped {name}: it does not share memory"
        if name in SHARED_MEMORY
        else line.replace("ok a batch ahead", "skipped a batch ahead: it does not take a batch ahead")
        for name, line in zip(NAMES, WITHOUT_CALLS, strict=True)
    ]
    assert suite("node", str(WORKER_JS)) == (0, lines)


def test_a_wrong_count_fails_the_checks_that_see_it() -> None:
    code, lines = suite(sys.executable, "echo.py", "count")
    assert (code, len(lines)) == (1, len(NAMES))
    assert [line for line in lines if line.startswith("FAILED ")] == [
        "FAILED a batch of 32 with errors: 31 outcomes for 32 items",
        "FAILED integers: 31 outcomes for 32 items",
    ]


@pytest.mark.parametrize(
    ("fault", "check", "why"),
    [
        ("order", "a batch of 32 with errors", "item 0: 'TEXT 1', where 'TEXT 0' was expected"),
        ("fail", "a batch of 32 with errors", "item 16: 'FAIL' for \"fail\", where an error was expected"),
        ("code", "stop", "it ended with exit code 3 after `stop`"),
        ("unasked", "stop", "`output` with 0 parts, which was not asked for"),
        ("unasked", "a batch of one", "`output` with 0 parts, where `outcomes` was expected"),
        ("stays", "the end of the socket", "it has not ended within 4 s after the end of the socket"),
        ("true", "lists and maps", "item 2['a'][1]: 1, where True was expected"),
        ("silent", "two calls", "`outcomes` with 2 parts, where `call` was expected"),
        ("stays", "a head beyond 4 MiB", "it has not ended within 4 s after the frame"),
        ("stays", "unknown memory", "it has not ended within 4 s after the frame"),
        ("keeps", "shared memory", "it uses the memory of a batch 4 s after its outcomes"),
    ],
)
def test_a_broken_rule_is_named(fault: str, check: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    # Only these workers are waited for in vain.
    timeout = 4 if fault in ("stays", "keeps") else 20
    assert failure(check, [sys.executable, "echo.py", fault], timeout) == why


def test_nothing_more_is_checked_without_a_start() -> None:
    assert suite("sleep", "1000", timeout="0.5") == (1, ["FAILED start: no `ready` within 0.5 s"])
    start = "FAILED start: no-such-program cannot be started: No such file or directory"
    assert suite("no-such-program") == (1, [start])
    start = "FAILED start: the end of the socket (exit code 7), where `ready` was expected"
    assert suite("sh", "-c", "exit 7") == (1, [start])
