"""Functions that name the callers of an app: in this process, and on a node."""

from __future__ import annotations

import asyncio
import http.client
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from node import ENVIRONMENT, PROGRAM

import callboard as cb
from callboard._app import load_app
from callboard._target import TargetError
from callboard.client.errors import UnauthenticatedError

LIMIT = 60

APP = """
import asyncio, os
import callboard as cb

@cb.auth(timeout="30s")
async def who(request: cb.Request) -> cb.Caller:
    match request.bearer:
        case "gold":
            return cb.Caller("ada", tags={"tier": "gold"}, priority="high")
        case "head":
            return cb.Caller(f"{request.method} {request.path} {request.query} {request.cookies} {request.client}")
        case "hangs":
            await asyncio.sleep(3600)
        case "blocks":
            import time
            time.sleep(3600)
        case "bug":
            raise RuntimeError("the password is 1234")
        case "wrong":
            return "ada"
        case "dies":
            os._exit(1)
    raise cb.HTTPException(401, "send a token", headers={"WWW-Authenticate": "Bearer"})

@cb.function
def seen(n: int, context: cb.Context) -> str:
    return f"{context.caller} {context.tags}"
"""


def write(directory: Path, text: str = APP, name: str = "app.py") -> str:
    (directory / name).write_text(text)
    return str(directory / name)


# ---- In this process -------------------------------------------------------------------------------------------------


@cb.auth
def who(request):  # type: ignore[no-untyped-def]
    if request.bearer != "t" and "session" not in request.cookies:
        raise cb.HTTPException(401, "send a token")
    return cb.Caller("ada", tags={"path": request.path, "page": request.query.get("page", ["1"])[0]})


def test_a_test_client_calls_the_function_as_a_node_does() -> None:
    with cb.test_client(who) as client:
        request = cb.Request(path="/x", headers={"authorization": "bearer t"}, query={"page": ["7", "8"]})
        found = cb.Caller("ada", tags={"path": "/x", "page": "7"})
        assert client.call(request) == client.call(json.loads(json.dumps(cb_to_dict(request)))) == found
        assert client.call({"headers": {"cookie": "a=1; session=2; a=3"}}).name == "ada"
        with pytest.raises(cb.HTTPException, match="401: send a token"):
            client.call({})


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The service that a node serves below, with the function in its module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "guarded_app", raising=False)
    write(tmp_path, name="guarded_app.py")
    return importlib.import_module("guarded_app")


def token(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


def test_the_client_of_a_test_is_asked_about_as_on_a_node(guarded: Any) -> None:
    with cb.test_client(guarded.seen) as test:
        client = test.client()
        assert client.call("/seen", 1, headers=token("gold")) == "ada {'tier': 'gold'}"
        head = client.call("/seen", 1, headers={**token("head"), "cookie": "c=3"}, query={"a": "1"})
        assert head == "POST /seen {'a': ['1']} {'c': '3'} 127.0.0.1 {}"
        assert client.with_options(headers=token("head")).send("seen", 1).startswith("POST /v1/call/seen {} ")
        # Before the route, the input and the code are looked at.
        for route, value in (("/seen", 1), ("/seen", "no number"), ("/other", 1)):
            with pytest.raises(UnauthenticatedError, match="send a token") as refused:
                client.call(route, value)
            assert (refused.value.status_code, refused.value.kind) == (401, "unauthenticated")
        for wrong in ("bug", "wrong"):
            with pytest.raises(cb.CallError, match="the check of the caller has failed") as failed:
                client.call("/seen", 1, headers=token(wrong))
            assert (failed.value.status_code, failed.value.kind) == (500, "internal")
        with pytest.raises(cb.CallError, match="the caller cannot be checked now") as late:
            client.call("/seen", 1, headers=token("hangs"), timeout=0.05)
        assert (late.value.status_code, late.value.kind) == (503, "unavailable")
        # Its own call is one of the code, without a request.
        assert test.call(1) == "None {}"
        assert test.call(1, context=cb.Context(caller="bob")) == "bob {}"


def test_an_asynchronous_client_is_asked_about(guarded: Any) -> None:
    async def calls() -> None:
        async with cb.test_client(guarded.seen) as test:
            assert await test.client().call("/seen", 1, headers=token("gold")) == "ada {'tier': 'gold'}"
            with pytest.raises(UnauthenticatedError):
                await test.client().call("/seen", 1)

    asyncio.run(calls())


def test_an_app_with_several_functions_is_refused_as_by_a_node(guarded: Any) -> None:
    guarded.other = cb.auth(lambda request: None)
    with pytest.raises(TargetError, match=r"`guarded_app:who`, `test_auth:<lambda>` have @auth: an app names"):
        cb.test_client(guarded.seen)
    with cb.test_client(guarded.who) as test:
        assert test.call(cb.Request(headers=token("gold"))).name == "ada"


BLOCKING = """
import time
import callboard as cb

@cb.auth(timeout="1ms")
{a}def who(request: cb.Request) -> cb.Caller:
    time.sleep(0.02)
    if request.bearer is None:
        raise cb.HTTPException(401, "send a token")
    return cb.Caller("ada")

@cb.function
def seen(n: int) -> int:
    return n
"""


@pytest.mark.parametrize("a", ["", "async "])
def test_a_function_that_blocks_beyond_its_time_lets_nobody_in(guarded: Any, tmp_path: Path, a: str) -> None:
    del sys.modules["guarded_app"]
    write(tmp_path, BLOCKING.format(a=a), "blocking_auth.py")
    app = importlib.reload(importlib.import_module("blocking_auth"))
    with cb.test_client(app.seen) as test:
        for headers in ({}, token("gold")):
            with pytest.raises(cb.CallError, match="the caller cannot be checked now") as late:
                test.client().call("/seen", 1, headers=headers)
            assert (late.value.status_code, late.value.kind) == (503, "unavailable")


@cb.function
def counted(n: int, context: cb.Context) -> str:
    return context.tags["time"]


def test_a_function_of_a_test_sees_the_time_of_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(request: cb.Request) -> cb.Caller:
        return cb.Caller("ada", tags={"time": request.headers.get("x-request-timeout-ms", "none")})

    monkeypatch.setitem(globals(), "who", cb.auth(told))
    with cb.test_client(counted) as test:
        assert test.client().call("/counted", 1, timeout=2) == "2000"
        assert test.client().call("/counted", 1) == "none"


def cb_to_dict(request: cb.Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__struct_fields__}


def test_the_parts_of_a_request_are_read() -> None:
    request = cb.Request(headers={"cookie": "a=1; b = x ;c=;a=2;d", "authorization": "Basic x"})
    assert (request.cookies, request.bearer) == ({"a": "1", "b": "x", "c": "", "d": ""}, None)
    assert (cb.Request().cookies, cb.Request().bearer) == ({}, None)


@pytest.mark.parametrize("wrong", [lambda: 1, lambda a, b: 1, int])
def test_a_function_takes_the_request_alone(wrong: Any) -> None:
    with pytest.raises(TypeError, match="@auth decorates `def who"):
        cb.auth(wrong)


def test_a_function_is_found_wherever_it_is_imported_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, "import callboard as cb\n@cb.auth\ndef who(request): ...\n", "doors_of_auth.py")
    text = "import callboard as cb\nfrom doors_of_auth import who\n@cb.function\ndef f() -> int: return 1\n"
    services = load_app(write(tmp_path, text, "house_of_auth.py")).describe()["services"]
    assert [(each["route"], each["target"].rpartition(":")[2]) for each in services] == [("/f", "f"), ("@auth", "who")]
    write(tmp_path, text + "@cb.auth\ndef other(request): ...\n", "two_of_auth.py")
    with pytest.raises(TargetError, match="are both called `auth`"):
        load_app(str(tmp_path / "two_of_auth.py"))


WRAPPED = """
def logged(fn):
    def call(request: cb.Request) -> cb.Caller:
        return fn(request)
    return call

@logged
@cb.auth
def who(request): ...
"""
IN_A_CLASS = """
class Security:
    @staticmethod
    @cb.auth
    def who(request): ...
"""
IN_A_FACTORY = """
def secure():
    @cb.auth
    def who(request): ...
secure()
"""


@pytest.mark.parametrize("text", ["import guard_of_auth\n", WRAPPED, IN_A_CLASS, IN_A_FACTORY])
def test_a_function_that_would_not_be_asked_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "guard_of_auth", raising=False)
    write(tmp_path, "import callboard as cb\n@cb.auth\ndef who(request): ...\n", "guard_of_auth.py")
    served = "import callboard as cb\n@cb.function\ndef f() -> int: return 1\n"
    with pytest.raises(TargetError, match=r"@auth `.*who` of the module `.*` is not found in .*: import the function"):
        load_app(write(tmp_path, served + text))


def test_a_function_below_a_decorator_with_wraps_is_asked(tmp_path: Path) -> None:
    wrapped = WRAPPED.replace("    def call", "    @functools.wraps(fn)\n    def call")
    text = "import functools\nimport callboard as cb\n@cb.function\ndef f() -> int: return 1\n" + wrapped
    services = load_app(write(tmp_path, text)).describe()["services"]
    assert [each["route"] for each in services] == ["/f", "@auth"]


# ---- On a node -------------------------------------------------------------------------------------------------------

needs_program = pytest.mark.skipif(PROGRAM is None, reason="the program `callboard` is not built")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    assert PROGRAM is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(Path(PROGRAM).parent), prepend=os.pathsep)
        patch.setenv("VIRTUAL_ENV", sys.prefix)
        with cb.start(write(tmp_path_factory.mktemp("auth"))) as node:
            yield urlsplit(node.url).netloc


def call(address: str, token: str | None, path: str = "/seen", **headers: str) -> tuple[int, Any, Any]:
    connection = http.client.HTTPConnection(address, timeout=LIMIT)
    more = {"authorization": f"Bearer {token}"} if token else {}
    connection.request("POST", path, "1", {"content-type": "application/json", **more, **headers})
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    return answer.status, body, answer.headers


@needs_program
def test_a_node_asks_the_function_who_calls(address: str) -> None:
    assert call(address, "gold")[:2] == (200, "ada {'tier': 'gold'}")
    status, body, headers = call(address, None)
    assert (status, body["message"], headers["www-authenticate"]) == (401, "send a token", "Bearer")
    _, body, _ = call(address, "head", "/seen?a=1&a=2", cookie="c=3")
    assert body == "POST /seen {'a': ['1', '2']} {'c': '3'} 127.0.0.1 {}"
    for open_path, status in (("/livez", 200), ("/metrics", 401), ("/@auth", 401)):
        connection = http.client.HTTPConnection(address, timeout=LIMIT)
        connection.request("GET", open_path)
        assert connection.getresponse().status == status, open_path
        connection.close()


@needs_program
@pytest.mark.parametrize(
    ("token", "status"), [("bug", 500), ("wrong", 500), ("hangs", 503), ("dies", 503), ("blocks", 503)]
)
def test_a_function_that_fails_lets_nobody_in_and_tells_nothing(address: str, token: str, status: int) -> None:
    # What hangs is asked for as long as its client waits.
    waits = {"x-request-timeout-ms": "500"} if status == 503 and token != "dies" else {}
    found, body, _ = call(address, token, **waits)
    assert found == status and "caller" in body["message"] and "1234" not in json.dumps(body), body
    # A process that has died, or says nothing for the timeout, is replaced.
    end = time.monotonic() + 2 * LIMIT
    while call(address, "gold")[0] != 200:
        assert time.monotonic() < end


@needs_program
def test_the_body_of_a_refused_request_is_not_awaited(address: str) -> None:
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT) as connection:
        lines = ["POST /seen HTTP/1.1", f"host: {address}", "content-type: application/json", "content-length: 9999"]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        assert connection.recv(12) == b"HTTP/1.1 401"


@needs_program
def test_calls_at_the_same_time_are_all_asked_about(address: str) -> None:
    def calls(_: int) -> int:
        connection = http.client.HTTPConnection(address, timeout=LIMIT)
        headers = {"content-type": "application/json", "authorization": "Bearer gold"}
        for _ in range(1250):
            connection.request("POST", "/seen", "1", headers)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"\"ada {'tier': 'gold'}\"")
        connection.close()
        return 1250

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(calls, range(8))) == 10_000


@needs_program
def test_a_stage_of_a_file_whose_callers_nobody_asks_for_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    stage = '[[stage]]\nname = "seen"\nkind = "python"\napp = "app.py:seen"\n'
    config = stage + '[[route]]\npath = "/seen"\nstages = "seen"\n'
    found = run(tmp_path, "openapi", write(tmp_path, config, "callboard.toml"))
    assert found.returncode != 0 and "`app.py:who` names the callers of its file, and is not asked" in found.stderr
    guard = stage.replace("seen", "who") + '[[route]]\npath = "@auth"\nstages = "who"\n'
    found = run(tmp_path, "openapi", write(tmp_path, config + guard, "callboard.toml"))
    assert "securitySchemes" in found.stdout, found.stderr
    found = run(tmp_path, "examples", "--lang", "curl", write(tmp_path, config + guard, "callboard.toml"))
    assert found.stdout.startswith("# this app names its callers (`@cb.auth`)\n\n# /seen\ncurl "), found.stderr
    assert "x-api-key" not in found.stdout


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**ENVIRONMENT, "VIRTUAL_ENV": sys.prefix}
    command = [str(PROGRAM), *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=LIMIT)
