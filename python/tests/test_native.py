"""The native transport against a node: needs `callboard._native` and the binary, as a wheel installs them."""

import _thread
import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("callboard._native")

from callboard.client import (
    AsyncClient,
    Client,
    DeadlineExceededError,
    FailedError,
    InternalError,
    NotFoundError,
    UnavailableError,
)

APP = Path(__file__).with_name("native_app.py")
LIMIT = 60


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url, timeout=LIMIT) as client:
        yield client


def test_values_cross_in_both_directions(client: Client) -> None:
    assert client.call("/echo", {"a": [1, 2.5, "x", None, b"\0" * 5000]}) == {"a": [1, 2.5, "x", None, b"\0" * 5000]}
    large = np.arange(1 << 21, dtype=np.float32).reshape(2, -1)
    for values in (large[:, :3], large):
        assert np.array_equal(client.call("/double", values), values * 2)


def test_a_failure_has_its_fields(client: Client) -> None:
    with pytest.raises(FailedError) as failed:
        client.call("/fail", "boom", request_id="mine")
    error = failed.value
    assert (error.message, error.request_id, error.was_started) == ("ValueError: boom", "mine", True)
    assert "native_app.py" in str(error.remote_traceback)
    with pytest.raises(FailedError) as refused:
        client.call("/refuse", "room")
    assert (refused.value.status_code, refused.value.retry_after) == (429, 3)
    with pytest.raises(NotFoundError) as unknown:
        client.call("/unknown")
    assert not unknown.value.was_started and (unknown.value.status_code, error.status_code) == (404, 500)
    with pytest.raises(Exception, match=r"\$\.a") as invalid:
        client.call("/add", {"a": "three"})
    assert invalid.value.details["fields"][0]["path"] == "$.a"


def test_an_answer_beyond_the_limit_is_not_the_fault_of_the_input(url: str) -> None:
    with Client(url, timeout=LIMIT, max_reply_bytes=1000) as client:
        with pytest.raises(InternalError) as raised:
            client.call("/echo", b"\0" * 5000)
        assert (raised.value.was_started, raised.value.type) == (True, "reply_too_large")
        assert client.call("/echo", 1) == 1


def test_settings_of_http_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="cluster="):
        Client(url, api_key="key")
    with pytest.raises(ValueError, match="expected a port"):
        Client("quic://host")
    with Client(url, cluster="/nowhere") as client, pytest.raises(Exception, match="/nowhere"):
        client.call("/echo")


def test_no_node_is_an_error_after_the_wait() -> None:
    with Client("quic://127.0.0.1:9", start_up_wait=0) as client, pytest.raises(UnavailableError, match="no node"):
        client.call("/echo")


def test_a_deadline_ends_a_call_here_and_there(client: Client) -> None:
    cancelled = client.call("/held", "cancelled")
    with pytest.raises(DeadlineExceededError):
        client.call("/held", "stay", timeout=0.2)
    assert client.call("/held", f"cancelled {cancelled + 1}") == cancelled + 1


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A process that a shell has started in its background ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_cancels_the_call(url: str, client: Client) -> None:
    started, cancelled = client.call("/held", "started"), client.call("/held", "cancelled")

    def interrupt() -> None:
        with Client(url, timeout=LIMIT) as other:
            other.call("/held", f"started {started + 1}")
            _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        client.call("/held", "stay")
    thread.join()
    assert client.call("/held", f"cancelled {cancelled + 1}") == cancelled + 1


def test_a_stream_makes_no_more_than_its_reader_takes(client: Client) -> None:
    assert list(client.replies("/count", 100)) == list(range(100))
    outputs = client.replies("/endless", "go")
    assert [next(outputs) for _ in range(100)] == list(range(1, 101))
    for n in range(100):
        assert client.call("/echo", n) == n
    (made,) = client.replies("/endless", "made")
    assert made < 400
    outputs.close()
    with pytest.raises(FailedError):
        list(client.replies("/fail", "boom"))


def test_tasks_call_stream_and_cancel(url: str) -> None:
    async def main() -> None:
        async with AsyncClient(url, timeout=LIMIT) as client:
            assert await asyncio.gather(*(client.call("/echo", n) for n in range(300))) == list(range(300))
            assert [n async for n in client.replies("/count", 50)] == list(range(50))
            with pytest.raises(FailedError):
                await client.call("/fail", "boom")
            started = await client.call("/held", "started")
            cancelled = await client.call("/held", "cancelled")
            task = asyncio.create_task(client.call("/held", "stay"))
            await client.call("/held", f"started {started + 1}")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await client.call("/held", f"cancelled {cancelled + 1}") == cancelled + 1
            async for _ in client.replies("/endless", "go"):
                break

            task = asyncio.create_task(client.call("/held", "stay"))
            await client.call("/held", f"started {started + 2}")
        with pytest.raises(UnavailableError, match="closed"):
            await task

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_two_event_loops_share_a_client(url: str) -> None:
    client = AsyncClient(url, timeout=LIMIT)

    async def calls() -> list[int]:
        try:
            return await asyncio.gather(*(client.call("/echo", n) for n in range(200)))
        finally:
            await client.aclose()

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(asyncio.run, calls()) for _ in range(4)]:
            assert done.result(LIMIT) == list(range(200))


def test_many_threads_share_a_client(client: Client) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda n: client.call("/echo", n), range(400))) == list(range(400))


def test_a_forked_process_connects_again(client: Client) -> None:
    assert client.call("/echo", 1) == 1
    before = client.replies("/count", 3)
    assert next(before) == 0
    for _ in range(5):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert client.call("/echo", 2) == 2
                with pytest.raises(UnavailableError, match="forked"):
                    next(before)
                # The copies are dropped here, with the locks as they were when the process was forked.
                del before, client
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(before) == [1, 2]
    assert client.call("/echo", 3) == 3


@pytest.mark.parametrize("ending", ["", "raise SystemExit", "asyncio.run(cancelled())"])
def test_an_interpreter_ends_with_calls_in_flight(url: str, ending: str) -> None:
    program = textwrap.dedent(f"""
        import asyncio, threading
        from callboard.client import AsyncClient, Client

        client, calls = Client({url!r}, timeout={LIMIT}), AsyncClient({url!r}, timeout={LIMIT})
        started = client.call("/held", "started")
        for _ in range(3):
            threading.Thread(target=client.call, args=("/held", "stay"), daemon=True).start()
        loop = asyncio.new_event_loop()
        task = loop.create_task(calls.call("/held", "stay"))
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))
        client.call("/held", f"started {{started + 4}}")

        async def cancelled():
            asyncio.create_task(calls.call("/held", "stay"))
            await asyncio.sleep(0)

        {ending}
    """)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, timeout=LIMIT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "panicked" not in done.stderr and "Fatal" not in done.stderr, done.stderr
