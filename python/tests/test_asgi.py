"""ASGI apps below a path of a node: `callboard.asgi`."""

from __future__ import annotations

import ast
import asyncio
import http.client
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Served, serving

import callboard as cb
from callboard import _asgi
from callboard._app import load_app
from callboard._asgi import AsgiRequest, _Exchange, _Lifespan
from callboard._context import Context
from callboard._exceptions import HTTPException
from callboard._target import TargetError

APP = Path(__file__).with_name("asgi_app.py")
LIMIT = 60


def until(found: Callable[[], Any], wanted: Any) -> None:
    end = time.monotonic() + LIMIT
    while (now := found()) != wanted:
        assert time.monotonic() < end, (now, wanted)
        time.sleep(0.02)


@pytest.fixture
def client(node: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=node.http, timeout=LIMIT) as client:
        yield client


def notes(client: httpx.Client, path: str = "/plain") -> list[str]:
    found: list[str] = ast.literal_eval(client.get(f"{path}/notes").text)
    return found


# ---- What an app gets and answers ------------------------------------------------------------------------------------


def test_an_app_sees_the_request_as_it_was_sent(node: Served) -> None:
    host, _, port = node.http.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=LIMIT)
    connection.putrequest("GET", "/plain/scope/a%2fb%20c?x=%20&x=%ff", skip_accept_encoding=True)
    connection.putheader("x-request-id", "r-1")
    connection.endheaders()
    scope = ast.literal_eval(connection.getresponse().read().decode())
    connection.close()
    expected = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "root_path": "/plain",
        "path": "/plain/scope/a/b c",
        "raw_path": b"/plain/scope/a%2fb%20c",
        "query_string": b"x=%20&x=%ff",
        "client": ("127.0.0.1", 0),
        "server": (host, int(port)),
        "state": {"started": "yes"},
        "request_id": "r-1",
    }
    assert scope == expected


def test_a_body_of_many_pieces_comes_back_whole(client: httpx.Client) -> None:
    body = os.urandom(3_000_000)
    answer = client.put("/plain/echo", content=body)
    assert answer.headers["x-length"] == "3000000" and answer.content == body * 3
    assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
    in_chunks = client.post("/plain/echo", content=iter([b"ab", b"cd"]))
    assert (in_chunks.headers["x-length"], in_chunks.content) == ("4", b"abcd" * 3)
    assert client.post("/double", json=2).json() == 4, "a route beside it"


def test_a_stream_arrives_chunk_by_chunk(client: httpx.Client) -> None:
    with client.stream("GET", "/plain/chunks") as answer:
        assert list(answer.iter_raw()) == [b"0", b"1", b"2"]


def test_a_head_has_no_body(client: httpx.Client) -> None:
    for path in ("/plain/echo", "/plain/process", "/plain/chunks", "/plain/endless"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b""), path
    assert int(client.head("/plain/process").headers["content-length"]) > 0


def test_an_app_is_the_same_whether_it_is_given_or_named(client: httpx.Client) -> None:
    for path in ("/plain", "/named"):
        scope = ast.literal_eval(client.get(f"{path}/scope").text)
        assert (scope["root_path"], scope["state"]) == (path, {"started": "yes"})
    assert client.get("/plain/process").text != client.get("/named/process").text, "each has its own process"


# ---- Trouble ---------------------------------------------------------------------------------------------------------


def test_an_app_that_raises_is_500_with_its_traceback_in_the_log(client: httpx.Client) -> None:
    answer = client.get("/plain/fails")
    assert (answer.status_code, answer.json()["message"]) == (500, "the app failed")
    assert client.get("/plain/silent").json()["message"] == "the app failed"
    with pytest.raises(httpx.RemoteProtocolError):
        client.get("/plain/breaks")


def test_an_app_that_never_answers_is_504_and_is_cancelled(client: httpx.Client) -> None:
    assert client.get("/named/waits").status_code == 504
    until(lambda: "cancelled" in notes(client, "/named"), True)


def test_a_process_that_dies_fails_its_requests_and_is_replaced(client: httpx.Client) -> None:
    before = client.get("/plain/process").text
    assert client.get("/plain/dies").status_code == 500
    until(lambda: client.get("/plain/process").status_code, 200)
    assert client.get("/plain/process").text != before


def test_a_client_that_leaves_ends_the_stream_of_an_app(client: httpx.Client, node: Served) -> None:
    notes(client)
    seen: list[str] = []
    with client.stream("GET", "/plain/endless") as answer:
        assert next(answer.iter_raw())
    until(lambda: (seen.extend(notes(client)), seen)[1], ["began", "the client has left"])
    # An app that waits is told, and then cancelled.
    host, _, port = node.http.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"GET /plain/waits HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        until(lambda: notes(client), ["http.request"])
    seen.clear()
    until(lambda: (seen.extend(notes(client)), seen)[1], ["http.disconnect", "cancelled"])


def test_what_an_app_does_after_its_response_goes_on(client: httpx.Client) -> None:
    notes(client)
    assert client.get("/plain/after").text == "answered"
    until(lambda: notes(client), ["after"])


def test_a_body_beyond_the_limit_never_reaches_the_app(tmp_path: Path) -> None:
    with serving(APP, tmp_path, "--max-body-bytes", "1MiB") as served:
        assert httpx.post(f"{served.http}/plain/echo", content=b"x" * 2**20).status_code == 200
        refused = httpx.post(f"{served.http}/plain/echo", content=b"x" * (2**20 + 1))
        assert (refused.status_code, refused.json()["error_type"]) == (413, "body_too_large")


def test_an_app_whose_event_loop_is_blocked_is_replaced_and_its_requests_are_told(tmp_path: Path) -> None:
    shutil.copy(APP, tmp_path)
    (tmp_path / "node.toml").write_text(
        '[[stage]]\nname = "plain"\nkind = "python"\napp = "asgi_app.py:@asgi-plain"\nconcurrency = 100\n'
        'silence_timeout = "1s"\n\n[[route]]\npath = "@asgi/plain"\nstages = "plain"\n'
    )
    with (
        serving(tmp_path / "node.toml", tmp_path) as served,
        httpx.Client(base_url=served.http, timeout=LIMIT) as client,
        ThreadPoolExecutor() as pool,
    ):
        before = client.get("/plain/process").text
        with client.stream("GET", "/plain/endless") as other:
            pieces = other.iter_raw()
            assert next(pieces)
            blocked = pool.submit(httpx.get, f"{served.http}/plain/blocks", timeout=LIMIT)
            with pytest.raises(httpx.RemoteProtocolError):
                for _ in pieces:
                    pass
        answer = blocked.result(LIMIT)
        assert (answer.status_code, answer.json()["kind"]) == (500, "worker_failed"), answer.text
        assert "it has said nothing for 1s" in answer.json()["message"]
        until(lambda: client.get("/plain/process").status_code, 200)
        assert client.get("/plain/process").text != before


def test_the_end_of_a_node_ends_streams_early_enough_for_the_shutdown_of_an_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = tmp_path / "stopped"
    monkeypatch.setenv("STOPPED", str(stopped))
    with (
        serving(f"{APP}:patient", tmp_path, "--drain", "4s", "--drain-delay", "0s") as served,
        httpx.stream("GET", f"{served.http}/named/endless", timeout=LIMIT) as answer,
    ):
        pieces = answer.iter_raw()
        assert next(pieces)
        served.process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in pieces:
                pass
        assert served.process.wait(LIMIT) == 0
    assert stopped.read_text() == "left\nstopped\n"


MOVING = """
import callboard as cb

cb.asgi({path!r}, "asgi_app:plain")
"""


def test_an_app_moves_to_another_path_by_a_reload_and_its_streams_end(tmp_path: Path) -> None:
    shutil.copy(APP, tmp_path)
    moving = tmp_path / "moving.py"
    moving.write_text(MOVING.format(path="/old"))
    with (
        serving(moving, tmp_path, "--reload", "--drain", "1s") as served,
        httpx.Client(base_url=served.http, timeout=LIMIT) as client,
        client.stream("GET", "/old/endless") as answer,
    ):
        pieces = answer.iter_raw()
        assert next(pieces)
        moving.write_text(MOVING.format(path="/new"))
        until(lambda: client.get("/new/process").status_code, 200)
        assert client.get("/old/process").status_code == 404
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in pieces:
                pass


# ---- FastAPI ---------------------------------------------------------------------------------------------------------


def test_an_app_of_fastapi_works_whole(client: httpx.Client, node: Served) -> None:
    pytest.importorskip("fastapi")
    item = client.get("/fastapi/items/7", params={"q": "a b"}, headers={"x-user": "ada"})
    assert item.json() == {"id": 7, "q": "a b", "user": "ada", "url": f"{node.http}/fastapi/items/1"}
    assert len(item.headers.get_list("set-cookie")) == 2
    assert client.get("/fastapi/items/x").status_code == 422, "its own answer"
    created = client.post("/fastapi/items", json={"name": "n"})
    assert (created.status_code, created.json()) == (201, {"name": "n"})
    assert client.get("/fastapi/old", follow_redirects=True).json()["id"] == 1
    assert client.delete("/fastapi/items/7").status_code == 405
    lines = client.get("/fastapi/stream")
    assert lines.text == "".join(f"line {n}\n" for n in range(100))
    assert "/items/{item_id}" in client.get("/fastapi/openapi.json").json()["paths"]
    assert client.get("/fastapi/docs").status_code == 200
    assert client.post("/fastapi/note").json() == "taken"
    until(lambda: client.get("/fastapi/notes").json(), ["background"])
    error = client.get("/fastapi/error")
    assert (error.status_code, error.text) == (500, "Internal Server Error")


def test_requests_share_a_replica(node: Served) -> None:
    pytest.importorskip("fastapi")

    def get(_: int) -> float:
        return float(httpx.get(f"{node.http}/fastapi/slow", timeout=LIMIT).text)

    with ThreadPoolExecutor(8) as pool:
        ends = sorted(pool.map(get, range(8)))
    # One after the other they would take eight times as long as one.
    assert ends[-1] - ends[0] < 8 * 0.3


# ---- The lifespan ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asks", [False, True])
def test_an_app_without_a_lifespan_starts_and_one_whose_startup_fails_does_not(asks: bool) -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        if asks:
            assert await receive() == {"type": "lifespan.startup"}
        raise ValueError("no database")

    async def run() -> None:
        lifespan = _Lifespan(failing, "/a")
        await lifespan.start()
        await lifespan.stop()

    if not asks:
        asyncio.run(run())
        return
    with pytest.raises(RuntimeError, match="the startup of the ASGI app failed") as failed:
        asyncio.run(run())
    assert str(failed.value.__cause__) == "no database"


def test_a_startup_that_says_it_failed_says_why() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    with pytest.raises(RuntimeError, match="the startup of the ASGI app failed: no database"):
        asyncio.run(_Lifespan(failing, "/a").start())


def test_a_startup_that_is_answered_by_anything_else_has_failed() -> None:
    async def confused(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    with pytest.raises(RuntimeError, match=r"failed: it has sent 'lifespan\.shutdown\.complete'"):
        asyncio.run(_Lifespan(confused, "/a").start())


# ---- What goes on without a client -----------------------------------------------------------------------------------


class Full(Context):
    """The context of a call in a replica that has no place for work after it."""

    def after(self, fn: Any, /, *args: Any, **kwargs: Any) -> None:
        raise HTTPException(503, "full")


def exchange(method: str = "GET") -> _Exchange:
    return _Exchange(AsgiRequest(method, "http", "1.1", "/a", "/a", "", [], None, b""))


def test_clients_that_leave_take_no_place_of_work_after_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_asgi, "_MAX_LEFT", 1)
    monkeypatch.setattr(_asgi, "_LEFT_SECONDS", LIMIT)

    async def run() -> None:
        tasks = [asyncio.ensure_future(asyncio.sleep(3600)) for _ in range(2)]
        for task in tasks:
            parts = exchange().parts(task, Full(), "/a")
            waiting = asyncio.ensure_future(parts.__anext__())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await asyncio.wait({tasks[1]}, timeout=LIMIT)
        assert (tasks[0].done(), tasks[1].cancelled()) == (False, True), "the one beyond the limit ends at once"

    asyncio.run(run())


def test_work_after_an_answer_that_finds_no_place_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        one = exchange()

        async def works() -> None:
            await one.send({"type": "http.response.start", "status": 204})
            await one.send({"type": "http.response.body"})
            await asyncio.sleep(3600)

        task = asyncio.ensure_future(works())
        assert [part async for part in one.parts(task, Full(), "/a")] == [{"status": 204, "headers": []}]
        await asyncio.wait({task}, timeout=LIMIT)
        assert task.cancelled()

    asyncio.run(run())
    assert "the ASGI app at /a is cancelled after its response" in caplog.text


def test_an_app_may_send_the_whole_body_of_a_head() -> None:
    async def run() -> None:
        one = exchange("HEAD")

        async def answers() -> None:
            await one.send({"type": "http.response.start", "status": 200})
            for n in range(3):
                await one.send({"type": "http.response.body", "body": b"x", "more_body": n < 2})

        task = asyncio.ensure_future(answers())
        assert [part async for part in one.parts(task, Context(), "/a")] == [{"status": 200, "headers": []}]
        await asyncio.wait_for(task, LIMIT)

    asyncio.run(run())


def test_a_start_with_a_wrong_header_is_none() -> None:
    async def run() -> None:
        one = exchange()

        async def answers() -> None:
            with pytest.raises(TypeError):
                await one.send({"type": "http.response.start", "status": 200, "headers": [("x-a", "b")]})
            await one.send({"type": "http.response.start", "status": 500})
            await one.send({"type": "http.response.body"})

        task = asyncio.ensure_future(answers())
        assert [part async for part in one.parts(task, Context(), "/a")] == [{"status": 500, "headers": []}]

    asyncio.run(run())


def test_apps_at_two_paths_have_two_stages(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(
        "import callboard as cb\n\na = cb.asgi('/b/c', 'a:b')\nb = cb.asgi('/b-c', 'a:b')\n"
    )
    assert {route.stage for route in load_app(str(tmp_path / "two.py")).routes} == {"asgi-b:c", "asgi-b-c"}


# ---- What is wrong is said -------------------------------------------------------------------------------------------


async def app(scope: Any, receive: Any, send: Any) -> None: ...


class Wsgi:
    def __call__(self, environ: Any, start_response: Any) -> list[bytes]: ...


@pytest.mark.parametrize(
    ("path", "given", "said"),
    [
        ("/", app, "'/'"),
        ("/a/{b}", app, "an app has a path of its own without parameters"),
        ("/a", "app", "write the name of the module and the app"),
        ("/a", 7, "7 is no ASGI app"),
        ("/a", Wsgi(), "two arguments, as an app of WSGI does, such as one of Flask: wrap it in an adapter"),
        ("/a", dict, "give the object that a server such as uvicorn gets"),
    ],
)
def test_anything_but_an_app_below_a_path_is_refused(path: str, given: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        cb.asgi(path, given)


def test_a_mount_is_described_as_a_private_route_under_the_name_that_it_has(tmp_path: Path) -> None:
    services = load_app(str(APP)).describe()["services"]
    found = {each["route"]: (each["target"].rpartition(":")[2], each["concurrency"]) for each in services}
    assert found["@asgi/plain"] == ("@asgi-plain", 100) and found["@asgi/named"] == ("patient", 100)
    other = tmp_path / "other.py"
    function = "@cb.function\ndef f(n: int) -> int:\n    return n\n"
    other.write_text(f"import callboard as cb\nimport mounts_elsewhere\n\n{function}")
    (tmp_path / "mounts_elsewhere.py").write_text("import callboard as cb\n\nmount = cb.asgi('/x', 'a:b')\n")
    with pytest.raises(TargetError, match=r"`mounts_elsewhere` mounts an ASGI app, and .*other\.py does not: import"):
        load_app(str(other))
    other.write_text(other.read_text().replace("import mounts_elsewhere", "from mounts_elsewhere import mount"))
    assert [each["route"] for each in load_app(str(other)).describe()["services"]] == ["/f", "@asgi/x"]


def test_an_app_is_tested_by_clients_of_its_own() -> None:
    with pytest.raises(TargetError, match=r"such as starlette\.testclient\.TestClient\(app\)"):
        cb.test_client(cb.asgi("/tested", app))
