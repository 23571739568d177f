"""Methods of one class run in the same replicas: what is described, what a worker does, and a node."""

from __future__ import annotations

import contextlib
import os
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from node import ENVIRONMENT, PROGRAM, Node

import callboard as cb
from callboard._app import load_app
from callboard._target import TargetError, beside, load_route
from callboard.client import Client, DeadlineExceededError, WorkerFailedError
from callboard.testing import test_client

APP = Path(__file__).with_name("methods_app.py")
LIMIT = 60


def replicas_of(target: str) -> dict[str, str | None]:
    described = load_app(target).describe()
    return {service["target"].rpartition(":")[2]: service["replicas_of"] for service in described["services"]}


def test_methods_that_answer_alike_share_the_replicas_of_the_first_of_them(tmp_path: Path) -> None:
    file = tmp_path / "shared_app.py"
    file.write_text(
        textwrap.dedent(
            """
            from collections.abc import AsyncIterator, Iterator

            import callboard as cb

            @cb.service
            class Mixed:
                def predict(self, n: int) -> int: return n

                @cb.route("/batched")
                @cb.batched
                def batched(self, ns: list[int]) -> list[int]: return ns

                @cb.route("/waits")
                async def waits(self, n: int) -> int: return n

                @cb.route("/stream")
                def stream(self, n: int) -> Iterator[int]: yield n

                @cb.route("/other")
                def other(self, n: int) -> Iterator[int]: yield n

                @cb.route("/many")
                @cb.concurrent(max=8)
                async def many(self, n: int) -> int: return n

                @cb.route("/more")
                @cb.concurrent(max=8)
                async def more(self, n: int) -> int: return n

                @cb.route("/alone", share_replicas=False)
                def alone(self, n: int) -> int: return n

            @cb.service(share_replicas=False)
            class Apart:
                def predict(self, n: int) -> int: return n

                @cb.route("/next")
                def next(self, n: int) -> int: return n

                @cb.route("/last", share_replicas=True)
                def last(self, n: int) -> int: return n
            """
        )
    )
    assert replicas_of(str(file)) == {
        "Mixed": None,
        "Mixed.batched": "mixed",
        "Mixed.waits": "mixed",
        "Mixed.stream": None,
        "Mixed.other": "stream",
        "Mixed.many": None,
        "Mixed.more": "many",
        "Mixed.alone": None,
        "Apart": None,
        "Apart.next": None,
        "Apart.last": None,
    }
    with pytest.raises(TargetError, match=r"Mixed.predict and Mixed.stream cannot share replicas"):
        beside(load_route(f"{file}:Mixed"), ["stream"])


def test_a_worker_runs_batches_of_several_methods_on_one_instance() -> None:
    with Node("methods_app.py:Model", methods=["upper", "slow"]) as node:
        head, _ = node.receive()
        assert (head["type"], head["methods"]) == ("ready", True)
        (first,) = node.call("a")
        for method, values, expected in [
            ("upper", ["a", "b"], ["A", "B"]),
            (None, ["c"], [{**first, "text": "c"}]),
            ("slow", [0.0], [0.0]),
        ]:
            node.send({"type": "batch", "id": 2, "items": [{} for _ in values], "method": method}, values)
            assert node.outcomes()[0] == expected
        assert node.stop()[0] == 0


def test_a_worker_refuses_a_method_that_it_was_not_told_of() -> None:
    with Node("methods_app.py:Model", methods=["upper"]).ready() as node:
        node.send({"type": "batch", "id": 1, "items": [{}], "method": "slow"}, [0.0])
        code, _, printed = node.end()
        assert (code, "unknown method 'slow'" in printed) == (1, True), printed
    with Node("methods_app.py:Model", methods=["nothing"]) as node:
        head, _ = node.receive()
        assert (head["type"], head["message"]) == ("failed", "Model has no method `nothing` that is a route")


def test_a_test_client_has_one_instance_for_all_methods() -> None:
    from methods_app import Model

    with test_client(Model) as client:
        before = client.call("a")
        assert client.batch(["a", "b"], method="upper") == ["A", "B"]
        assert client.call("a") == before


# ---- A node ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(target: str | Path) -> Iterator[Client]:
    if PROGRAM is None:
        pytest.skip("the program `callboard` is not built")
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("PATH", f"{Path(PROGRAM).parent}{os.pathsep}{os.environ['PATH']}")
        variables.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
        with cb.start(str(target)) as node, node.client(timeout=LIMIT) as client:
            yield client


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(APP) as client:
        yield client


def test_methods_of_a_node_have_one_process_and_batches_of_their_own(client: Client) -> None:
    first = client.call("/model", "a")
    assert first["text"] == "a"
    with ThreadPoolExecutor(16) as calls:
        uppers = [calls.submit(client.call, "/upper", f"b{n}") for n in range(24)]
        plain = [calls.submit(client.call, "/model", f"c{n}") for n in range(24)]
        assert [call.result() for call in uppers] == [f"B{n}" for n in range(24)]
        answers = [call.result() for call in plain]
    assert [answer["text"] for answer in answers] == [f"c{n}" for n in range(24)]
    assert {answer["pid"] for answer in answers} == {first["pid"]} and first["setups"] == 1
    assert client.call("/sizes", 0) == {"mixed": 0}, "a batch never has items of another method"


def test_a_method_that_crashes_its_process_leaves_the_others_to_the_next_one(client: Client) -> None:
    before = client.call("/model", "a")["pid"]
    with pytest.raises(WorkerFailedError, match="code 7"):
        client.call("/crash", 1)
    after = client.call("/model", "a")
    assert after["pid"] != before and after["setups"] == 1
    assert client.call("/upper", "a") == "A"


def test_a_method_that_hangs_is_ended_by_the_timeout_of_its_class(client: Client) -> None:
    before = client.call("/model", "a")["pid"]
    with pytest.raises(DeadlineExceededError):
        client.call("/slow", 600.0)
    assert client.call("/model", "a")["pid"] != before


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="needs /proc")
def test_two_methods_take_the_memory_of_one(tmp_path: Path) -> None:
    taken = {}
    for methods in (1, 2):
        app = tmp_path / f"methods_{methods}.py"
        app.write_text(HEAVY + SECOND * (methods - 1))
        with served(app) as client:
            assert client.call("/heavy", 1) == client.call(("/heavy", "/second")[methods - 1], 1) == 100 << 20
            taken[methods] = memory_of_children(os.getpid(), app.name)
    ratio = taken[2] / taken[1]
    assert taken[1] > 100 << 20
    assert ratio <= 1.1, f"two methods take {taken[2] >> 20} MiB, one takes {taken[1] >> 20} MiB, ratio {ratio:.2f}"


HEAVY = """
import callboard as cb

@cb.service
class Heavy:
    def setup(self) -> None:
        self.model = bytearray(b"m" * (100 << 20))

    def predict(self, n: int) -> int:
        return len(self.model)
"""
SECOND = """
    @cb.route("/second")
    def second(self, n: int) -> int:
        return len(self.model)
"""


def memory_of_children(parent: int, app: str) -> int:
    """The memory of the Python processes of an app below a process: what each has alone, and its share of the rest."""
    below, total = [parent], 0
    processes = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            processes[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    while below:
        at = below.pop()
        below += [child for child, of in processes.items() if of == at]
        with contextlib.suppress(OSError):
            if "callboard." in (words := Path(f"/proc/{at}/cmdline").read_text()) and app in words:
                lines = Path(f"/proc/{at}/smaps_rollup").read_text().splitlines()
                total += next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total
