"""Objects of user code whose texts raise: only what is asked of them fails."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from node import Node
from test_describe import run_describe
from test_relay import Scores

import callboard as cb
from callboard import relay
from callboard._awaiting import finish
from callboard._errors import failed
from callboard._hooks import Health, warm_up
from callboard._runner import Runner
from callboard._target import routes_of
from callboard.client import Prepared


class Mute:
    """Neither its texts nor its truth can be asked for."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise RuntimeError("neither")


class Wrong(Exception):
    __str__ = __repr__ = Mute.__str__


class Odd(Exception):
    @property
    def __cause__(self) -> None:
        raise RuntimeError("no cause")


class Key(int):
    __str__ = __repr__ = Mute.__str__


class False_(Mute):
    def __bool__(self) -> bool:
        return False


def health_of(answer: Any) -> str | None:
    class Replica:
        def health(self) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    return finish(Health(Replica()).reason())


def test_the_reason_of_a_health_whose_texts_raise() -> None:
    assert health_of(Wrong()) == "health() raised Wrong: <test_said.Wrong: its str() raised RuntimeError>"
    assert health_of(False_()) == "health() is <test_said.False_: its repr() raised RuntimeError>"
    assert health_of(Mute()) == "health() raised RuntimeError: neither"


def test_an_example_whose_error_has_no_text_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    @cb.function(examples=[1])
    def fails(x: int) -> int:
        raise Wrong

    (route,) = routes_of(fails, "fails")
    with caplog.at_level(logging.WARNING):
        asyncio.run(warm_up(route, Runner(route, None)))
    assert "example 1 failed at warm-up: <test_said.Wrong: its str() raised RuntimeError>" in caplog.text


def test_a_key_without_a_text_is_refused_with_its_place() -> None:
    with pytest.raises(TypeError, match=r"a key of type `test_said.Key`.*\$\.a"):
        Prepared.call("/x", {"a": {Key(1): 1}})


def test_an_import_whose_error_has_no_text_is_one_line(tmp_path: Path) -> None:
    code = "class Wrong(Exception):\n    def __str__(self):\n        raise RuntimeError\n\n\nraise Wrong\n"
    (tmp_path / "app.py").write_text(code)
    status, printed, errors = run_describe("app.py", tmp_path)
    assert (status, printed) == (2, "")
    (last,) = errors.splitlines()[-1:]
    assert last.startswith("callboard.describe: app.py, line 6: Wrong: <") and last.endswith(
        "str() raised RuntimeError>"
    )


def test_a_start_whose_error_has_no_cause_is_told(tmp_path: Path) -> None:
    code = (
        "import callboard as cb\n\n\nclass Odd(Exception):\n    @property\n    def __cause__(self):\n"
        "        raise RuntimeError\n\n\n@cb.service\nclass Starts:\n    def setup(self):\n        raise Odd('a')\n\n"
        "    def predict(self, x: int) -> int:\n        return x\n"
    )
    (tmp_path / "app.py").write_text(code)
    with Node(f"{tmp_path}/app.py:Starts") as node:
        message, _ = node.receive()
        assert message["type"] == "failed" and "Odd" in message["message"]
    assert "Odd" in failed(Odd("a"))["message"]


@pytest.mark.parametrize("error", [Wrong(), relay.InvalidReply(Mute())])
def test_a_gateway_whose_error_has_no_text_has_a_result(error: Exception, tmp_path: Path) -> None:
    class Raises(Scores):
        def batches(self) -> Any:
            raise error

    result = Raises([]).run(tmp_path)
    assert not result.succeeded and "str() raised RuntimeError" in str(result.message)
