"""Preparation, warm-up and health."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hooks
import pytest
from node import ENVIRONMENT, Node

import callboard as cb
from callboard._awaiting import finish
from callboard._hooks import Health, Preparation, clean_up
from callboard._target import TargetError, routes_of

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "callboard"


def prepare(*arguments: str, cwd: Path = HERE) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "callboard.prepare", *arguments]
    found = subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    return found.returncode, found.stdout, found.stderr


# ---- Preparation -----------------------------------------------------------------------------------------------------


def test_a_node_is_prepared_once_before_setup(cache: Path) -> None:
    for _ in range(2):
        with cb.test_client(hooks.Prepared) as client:
            assert client.call(None) == "x"
    with Node("hooks.py:Prepared").ready() as node:
        assert node.call(None) == ["x"]
    (directory, _) = sorted(cache.iterdir())
    assert directory.name.startswith("hooks-Prepared-")
    with cb.test_client(hooks.Prepared, cache=cache / "other") as client:
        assert client.call(None) == "x"
    assert (cache / "other" / "runs").exists()


def test_replicas_that_start_together_prepare_once() -> None:
    def start(replica: int) -> list[Any]:
        with Node("hooks.py:Prepared", replica=replica).ready() as node:
            return node.call(None)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(start, range(3))) == [["x"]] * 3


def test_a_service_without_prepare_needs_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)

    class Plain:
        pass

    class Prepares:
        def prepare(self) -> None: ...

    plain = Preparation(Plain)
    assert (plain.place, plain.run(Plain())) == (None, False)
    with pytest.raises(RuntimeError, match=r"^Prepares\.prepare needs a directory, and this user has no home"):
        Preparation(Prepares).run(Prepares())


def test_prepare_runs_again_if_it_was_changed_or_has_failed(tmp_path: Path) -> None:
    class Fails:
        def prepare(self, cache: Path) -> None:
            raise OSError("no network")

        def predict(self, x: int) -> int:
            return x

    for _ in range(2):
        with pytest.raises(OSError, match="no network"):
            Preparation(Fails, tmp_path).run(Fails())
    assert Preparation(Fails, tmp_path).is_needed()
    Fails.prepare = lambda self, cache: None  # type: ignore[method-assign,assignment]
    assert Preparation(Fails, tmp_path).run(Fails()) and not Preparation(Fails, tmp_path).is_needed()
    Fails.prepare = lambda self, cache: print("changed")  # type: ignore[method-assign,assignment]
    assert Preparation(Fails, tmp_path).is_needed()


def test_the_command_prepares_all_services_or_says_what_is_needed(tmp_path: Path) -> None:
    code, out, _ = prepare("--check", "hooks.py")
    assert code == 1 and out.count(": needed, in ") == 2
    code, out, _ = prepare("hooks.py:PreparedLater")
    assert code == 0 and out.startswith("PreparedLater: prepared in ") and out.count("\n") == 1
    assert prepare("hooks.py")[1].count(": was prepared in ") == 1
    code, out, _ = prepare("--check", "hooks.py")
    assert code == 0 and out.count(": prepared in ") == 2
    code, _, err = prepare("none.py")
    assert (code, err) == (2, "callboard.prepare: there is no file none.py\n")
    (tmp_path / "app.py").write_text(
        "import callboard as cb\n@cb.service\nclass A:\n    def prepare(self, cach): ...\n    def predict(self): ...\n"
    )
    code, _, err = prepare("app.py", cwd=tmp_path)
    assert code == 2 and "prepare has a parameter `cach` that nothing is known for: did you mean `cache`?" in err


# ---- Examples --------------------------------------------------------------------------------------------------------


def test_examples_warm_each_replica_up_and_are_described() -> None:
    with Node("hooks.py:Warm").ready() as node:
        assert [record["message"] for record in node.logs] == [
            "Warm.predict: example 2 failed at warm-up: no such text"
        ]
        assert node.call("b") == [["a", "fail", "b"]]
    with Node("hooks.py:Warm.endless", settings={"log_level": "debug"}).ready() as node:
        assert "Warm.endless: example 1 ran in" in node.logs[-1]["message"]
    warm, endless = (json.loads(json.dumps(route.describe())) for route in routes_of(hooks.Warm, "hooks.py:Warm"))
    assert (warm["examples"], endless["examples"]) == (["a", "fail"], [[1.0, 1.0]])


def test_an_example_that_does_not_fit_is_refused() -> None:
    @cb.function(examples=[{"a": 1}, {"a": "x"}])
    def f(a: int, b: int = 1) -> int:
        return a

    (route,) = routes_of(f, "f")
    with pytest.raises(TargetError, match=r"f: example 2: Expected `int`, got `str` - at `\$.a`"):
        route.describe()
    with pytest.raises(TypeError, match="examples='a': must be a list"):
        cb.function(examples="a")(f)


# ---- Health ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "answer", "reason"),
    [
        ("hooks.py:Unwell", False, "health() is False"),
        ("hooks.py:Unwell", "raise", "health() raised RuntimeError: the device is lost"),
        ("hooks.py:UnwellLater", False, "health() is False"),
    ],
)
def test_a_replica_that_is_not_well_ends_after_its_batch(target: str, answer: Any, reason: str) -> None:
    with Node(target).ready() as node:
        node.batch([answer])
        head, values = node.receive()
        assert (head["type"], head["items"], head["last"], len(values)) == ("outcomes", [None], True, 1)
        code, printed, _ = node.end()
        assert (code, printed) == (1, f"cleaned up after RuntimeError({reason!r})\n")
        (record,) = node.logs
        assert record["message"] == f"this replica ends, and is started again: {reason}"


def test_code_that_ends_its_process_is_cleaned_up_after() -> None:
    with Node("hooks.py:Unwell").ready() as node:
        node.batch(["leave"])
        code, printed, _ = node.end()
        assert (code, printed) == (3, "cleaned up after SystemExit(3)\n")


@pytest.mark.parametrize(
    ("target", "how", "code", "last"),
    [
        ("hooks.py:CleansUpBadly", "leave", 3, ["callboard.worker: SystemExit: 3"]),
        ("hooks.py:CleansUpBadly", "unwell", 1, []),
        ("hooks.py:CleansUpBadly", None, 1, []),
        ("hooks.py:CleansUpBadlyLater", None, 1, []),
    ],
)
def test_an_exception_in_cleanup_is_logged_and_hides_no_reason(
    target: str, how: str | None, code: int, last: list[str]
) -> None:
    with Node(target).ready() as node:
        if how is None:
            node.send({"type": "stop"})
        else:
            node.batch([how])
        if how == "unwell":
            assert node.receive()[0]["last"] is True
        message = node.receive_any()[0]["message"]
        ended, _, printed = node.end()
        assert (ended, printed.splitlines()) == (code, last)
        assert f"{target[9:]}.cleanup failed: the disk is full\nTraceback" in message
        assert message.endswith("ValueError: the disk is full")


def test_a_cleanup_after_an_exit_has_a_limit() -> None:
    with Node("hooks.py:CleansUpBadly").ready() as node:
        node.batch(["hang"])
        said = node.receive_any()[0]["message"]
        code, _, printed = node.end()
        assert (code, printed) == (3, "callboard.worker: SystemExit: 3\n")
        assert said == "cleanup did not end within 0.2 s of a SystemExit and is cut"


def test_a_cleanup_takes_nothing_or_the_error() -> None:
    def run(cleanup: Any) -> Any:
        owner = type("Owner", (), {"predict": hooks.Unwell.predict, "cleanup": cleanup})
        routes_of(owner, "Owner")
        return clean_up(owner(), RuntimeError("x"))

    for taken in (
        lambda self, what: what,
        lambda self, what, more=1: what,
        lambda self, more=1, error=None: error,
        lambda self, *, exc=None: exc,
        staticmethod(lambda error: error),
        classmethod(lambda cls, exception=None: exception),
    ):
        assert repr(run(taken)) == "RuntimeError('x')"
    for left in (lambda self: 1, lambda self, timeout=1: timeout, lambda self, *more, **named: 1 + len(more)):
        assert run(left) == 1
    for wrong, shown in (
        (lambda self, a, b: None, r"\(a, b\)"),
        (lambda self, *, error: None, r"\(\*, error\)"),
        (staticmethod(lambda a, b: None), r"\(a, b\)"),
    ):
        with pytest.raises(TargetError, match=f"Owner.cleanup{shown}: it gets one argument at most"):
            run(wrong)


def test_a_replica_that_is_well_goes_on_and_is_asked_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    with Node("hooks.py:Unwell").ready() as node:
        assert node.call(True) == node.call(True)
        assert node.stop()[:2] == (0, "cleaned up after None\n")
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    instance = hooks.Unwell()
    instance.answer = None
    health = Health(instance)
    assert finish(health.reason()) is None
    instance.answer = False
    # It was asked a moment ago.
    assert finish(health.reason()) is None
    now += 1.0
    assert finish(health.reason()) == "health() is False"
    assert finish(Health(object()).reason()) is None


def test_a_class_is_prepared_by_its_name_without_what_it_depends_on(tmp_path: Path) -> None:
    code = """
import callboard as cb

class Inner:
    def prepare(self): ...
    def predict(self, x: int) -> int: ...

class Outer(Inner):
    inner = cb.depends(Inner)

app = cb.pipeline(Inner, Outer)
"""
    (tmp_path / "app.py").write_text(code)

    def said(target: str) -> list[str]:
        code, printed, errors = prepare("--check", target, cwd=tmp_path)
        assert code == 1, errors
        return [line.partition(":")[0] for line in printed.splitlines()]

    assert said("app.py:Outer") == ["Outer"]
    assert said("app.py:app") == ["Inner", "Outer"]
