"""Keyed classes on a node: order, crashes, and what is there after a restart."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from node import ENVIRONMENT, HERE, PROGRAM

from callboard import CallError
from callboard.client import Client, InvalidInputError, WorkerFailedError

APP = HERE / "keyed_app.py"
LIMIT = 30


class Server:
    """A `callboard serve`, which can be killed."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        assert PROGRAM is not None
        app = directory / APP.name
        if not app.exists():
            shutil.copy(APP, app)
        environment = {**ENVIRONMENT, "VIRTUAL_ENV": str(Path(sys.executable).parents[1])}
        command = [PROGRAM, "serve", str(app), "--http", "127.0.0.1:0", "--admin", "none", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.lines: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if "listening on http://" in line:
                self.url = "http://" + line.split("listening on http://")[1].split()[0]
                break
        else:
            raise AssertionError("".join(self.lines))

    def end(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.communicate(timeout=LIMIT)


@contextlib.contextmanager
def served(directory: Path, *arguments: str) -> Iterator[tuple[Client, Server]]:
    if PROGRAM is None:
        pytest.skip("the program `callboard` is not built")
    server = Server(directory, *arguments)
    try:
        with Client(server.url, timeout=LIMIT) as client:
            yield client, server
    finally:
        if server.process.poll() is None:
            server.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with served(tmp_path_factory.mktemp("keyed"), "--actor-store", "memory") as (client, _):
        yield client


def test_a_key_keeps_its_state(client: Client) -> None:
    assert [client.call("/basket/ann/add", item) for item in ("tea", "jam")] == [1, 2]
    assert client.call("/basket/bob/add", "tea") == 1
    assert client.call("/basket/a%2Fb%C3%A4/about", headers={"x-user": "eve"}) == {
        "text": "the basket of a/bä",
        "device": "cpu",
        "user": "eve",
        "route": "/basket/{key}/about",
    }
    with urllib.request.urlopen(f"{client_url(client)}/basket/ann?limit=1") as answer:
        assert json.load(answer) == ["tea"]
    assert client.call("/basket/ann/tea/take") == "ann has no tea"


def client_url(client: Client) -> str:
    return str(client.url)


def test_the_calls_of_a_key_are_in_order_and_those_of_keys_at_once(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    with ThreadPoolExecutor(8) as calls:
        try:
            held = []
            for number in range(5):
                asked = {"number": number, "gate": str(gate)}
                held.append(calls.submit(client.call, "/line/a", asked))
                wait_for(client, f'callboard_keyed_waiting{{kind="line"}} {number + 1}')
            assert client.call("/line/b", {"number": 7}) == [7], "another key answers meanwhile"
            assert not any(call.done() for call in held)
        finally:
            gate.touch()
        assert [call.result() for call in held] == [list(range(number + 1)) for number in range(5)]


def test_a_call_that_fails_changes_nothing(client: Client) -> None:
    client.call("/basket/fay/add", "tea")
    with pytest.raises(CallError) as failed:
        client.call("/basket/fay/add", "bomb")
    assert (failed.value.status_code, failed.value.message) == (409, "no bombs")
    with pytest.raises(InvalidInputError):
        client.call("/basket/fay/add", 5)
    assert client.call("/basket/fay/add", "jam") == 2


def test_a_call_that_kills_its_replica_fails_alone(client: Client) -> None:
    client.call("/basket/gil/add", "tea")
    with pytest.raises(WorkerFailedError):
        client.call("/basket/gil/add", "crash")
    assert client.call("/basket/gil/add", "jam") == 2, "the key goes on with its last state"


def test_a_key_that_was_forgotten_or_only_asked_has_no_record(tmp_path: Path) -> None:
    with served(tmp_path) as (client, server):
        for basket in ("/basket/ann", "/basket/bob"):
            assert client.call(f"{basket}/add", "tea") == 1
        assert client.call("/basket/ann/check_out", False) == ["tea"]
        assert client.call("/basket/ann") == []
        server.end()
    with served(tmp_path) as (client, _):
        assert client.call("/basket/ann/add", "jam") == 1, "it begins anew"
        assert client.call("/basket/bob/add", "jam") == 2


def test_the_document_has_the_key(client: Client) -> None:
    with urllib.request.urlopen(f"{client_url(client)}/openapi.json") as answer:
        document: dict[str, Any] = json.load(answer)
    assert "get" in document["paths"]["/basket/{key}"]
    operation = document["paths"]["/basket/{key}/{item}/take"]["post"]
    assert [each["name"] for each in operation["parameters"] if each.get("in") == "path"] == ["key", "item"]
    assert document["paths"]["/basket/{key}/add"]["post"]["summary"] == "Puts something in."
    assert not [path for path in document["paths"] if "@" in path]


def test_what_was_answered_is_there_after_the_node_was_killed(tmp_path: Path) -> None:
    with served(tmp_path) as (client, server):
        assert [client.call("/basket/ann/add", str(number)) for number in range(20)] == list(range(1, 21))
        assert client.call("/visits/ann") == 1
        server.end(signal.SIGKILL)
    assert (tmp_path / ".callboard/actors.redb").stat().st_mode & 0o077 == 0, "nobody else reads it"
    with served(tmp_path) as (client, server):
        assert client.call("/basket/ann/add", "tea") == 21
        assert client.call("/visits/bob") == 1
        server.end()
    with served(tmp_path) as (client, _):
        assert client.call("/visits/bob") == 2, "a node that ends by itself has saved what was relaxed"


def test_a_relaxed_change_is_saved_after_a_while(tmp_path: Path) -> None:
    with served(tmp_path) as (client, server):
        assert client.call("/visits/ann") == 1
        wait_for(client, 'callboard_keyed_saves_total{kind="visits",result="ok"} 1')
        server.end(signal.SIGKILL)
    with served(tmp_path) as (client, _):
        assert client.call("/visits/ann") == 2


def wait_for(client: Client, sample: str) -> None:
    deadline = time.monotonic() + LIMIT
    while True:
        with urllib.request.urlopen(f"{client_url(client)}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        if sample in lines:
            return
        assert time.monotonic() < deadline, (sample, [line for line in lines if line.startswith("callboard_keyed")])
        time.sleep(0.01)


def test_a_store_that_another_node_has_is_an_error_of_the_call(tmp_path: Path) -> None:
    store = str(tmp_path / "carts.redb")
    with (
        served(tmp_path, "--actor-store", store) as (first, _),
        served(tmp_path, "--actor-store", store) as (second, _),
    ):
        assert first.call("/basket/ann/add", "tea") == 1
        with pytest.raises(CallError, match="another process or store has the file") as failed:
            second.call("/basket/ann/add", "tea", timeout=1)
        assert failed.value.status_code == 503
        assert first.call("/basket/ann/add", "tea") == 2


def test_a_class_may_call_a_service(tmp_path: Path) -> None:
    app = tmp_path / APP.name
    app.write_text(
        "import callboard as cb\n"
        "@cb.function\ndef price(item: str) -> int:\n    return len(item)\n"
        "@cb.keyed\nclass Bill:\n    state: int = 0\n    price = cb.depends(price)\n"
        "    def add(self, item: str) -> int:\n"
        "        self.state += self.price(item)\n        return self.state\n"
    )
    with served(tmp_path) as (client, _):
        assert [client.call("/bill/ann/add", item) for item in ("tea", "cacao")] == [3, 8]
    assert os.path.exists(tmp_path / ".callboard/actors.redb")


def test_a_state_that_does_not_fit_fails_its_call_alone(client: Client) -> None:
    assert client.call("/basket/hal/add", "tea") == 1
    with pytest.raises(CallError, match=r"Basket\.state: the new state does not fit") as failed:
        client.call("/basket/hal/spoil", False)
    assert failed.value.status_code == 500
    with pytest.raises(CallError, match=r"the state has \d+ bytes, more than 1048576"):
        client.call("/basket/hal/add", "x" * 1_100_000)
    assert client.call("/basket/hal") == ["tea"]


def test_two_classes_of_one_name_do_not_start(tmp_path: Path) -> None:
    if PROGRAM is None:
        pytest.skip("the program `callboard` is not built")
    app = tmp_path / APP.name
    one = (
        "@cb.keyed(name={name!r})\nclass {cls}:\n    state: int = 0\n    def {method}(self) -> int:\n        return 1\n"
    )
    app.write_text(
        "import callboard as cb\n"
        + one.format(name="my_cart", cls="A", method="add")
        + one.format(name="my-cart", cls="B", method="take")
    )
    checked = subprocess.run(
        [PROGRAM, "check", app],
        env=ENVIRONMENT | {"VIRTUAL_ENV": str(Path(sys.executable).parents[1])},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert checked.returncode != 0
    assert f"`{app}:A` and `{app}:B` have the name `my-cart`" in checked.stderr, checked.stderr
