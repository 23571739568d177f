"""Pipelines: what they mean, their mistakes, and their test client."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import composed
import pytest
from test_describe import run_describe

import callboard as cb
from callboard._app import load_app
from callboard._target import TargetError


def described(target: str = "composed.py", cwd: Path | None = None) -> dict[str, Any]:
    code, out, err = run_describe(target, cwd) if cwd else run_describe(target)
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def test_pipelines_are_described_in_the_grammar_of_the_file() -> None:
    document = described()
    inner = ["clean", "shout"]
    assert document["pipelines"] == [
        {
            "name": "app",
            "route": "/whole",
            "steps": [*inner, {"ensemble": {"loud": "shout", "size": "size"}, "partial": True}],
        },
        {
            "name": "pick_one",
            "route": "/pick-one",
            "steps": {
                "switch": "want",
                "cases": {"loud": [{"pick": "text"}, *inner], "size": [{"pick": "text"}, "size"]},
                "default": "mixed",
            },
        },
    ]


def test_a_step_has_no_route_unless_it_asks_for_one_or_is_called() -> None:
    services = {service["name"]: service for service in described()["services"]}
    steps = [name for name, service in services.items() if service.get("is_step")]
    assert steps == ["clean", "mixed"], "Shout is called by others, Size has a route of its own"
    assert services["Search"]["depends"] == [
        {"attribute": "embed", "route": "/embedder"},
        {"attribute": "size", "route": "/size"},
    ]
    assert "depends" not in services["Shout"]


def test_models_and_imported_steps_are_described(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(
        "import callboard as cb\n@cb.service\nclass Best:\n    def predict(self, x: int) -> int: ...\n"
        "@cb.service\nclass Helper:\n    def predict(self, x: int) -> int: ...\n"
    )
    (tmp_path / "app.py").write_text(
        "import callboard as cb\nimport steps\n\n@cb.function\ndef decode(x: int) -> int: ...\n"
        "@cb.service\nclass Own:\n    helper = cb.depends(steps.Helper)\n    def predict(self, x: int) -> int: ...\n"
        "digits = cb.onnx('some digits.onnx', max_batch_size=32, cost='rows')\n"
        "reader = cb.pipeline(decode, digits, cb.stage('labels', names=['a', 'b']), steps.Best)\n"
    )
    (tmp_path / "some digits.onnx").write_bytes(b"")
    document = described("app.py", tmp_path)
    assert [(each["target"], each.get("is_step", False)) for each in document["services"]] == [
        ("app.py:decode", True),
        ("app.py:Own", False),
        ("steps:Best", True),
        ("steps:Helper", False),
    ]
    model = {"model": "some digits.onnx", "max_batch_size": 32, "cost": "rows"}
    assert document["stages"] == [
        {"name": "some-digits", "kind": "onnx", "keys": model},
        {"name": "labels", "kind": "labels", "keys": {"names": ["a", "b"]}},
    ]
    assert [each["route"] for each in document["pipelines"]] == ["/reader"]
    assert [each["name"] for each in described("app.py:reader", tmp_path)["pipelines"]] == ["reader"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("app = cb.pipeline(text, 7)", "pipeline: step 2: 7 is no step"),
        ("app = cb.pipeline(Box())", "pipeline: step 1: use the class `Box` itself, not an instance"),
        ("app = cb.pipeline()", "pipeline has no step"),
        ("app = cb.ensemble()", "ensemble has no step"),
        ("app = cb.ensemble(a='text')", "ensemble: a: 'text' is no step"),
        ("app = cb.pipeline(text, cb.onnx('no.onnx'))", "cb.onnx('no.onnx'): there is no file "),
        ("app = cb.onnx('a.onnx', max_batch=2)", "onnx has no option 'max_batch': did you mean 'max_batch_size'?"),
        ("app = cb.stage('lables')", "there is no kind 'lables': did you mean 'labels'?"),
        ("app = cb.pipeline(lambda x: x)", "`<lambda>` cannot be a step"),
        ("app = cb.pipeline(text, count)", "app: text gives `str`, and count takes `int`: string is no number"),
        ("app = cb.pipeline(array, wide)", "an array of float32 is no array of float64"),
        ("app = cb.pipeline(pair, points)", "an array of shape (2,) is none of shape (n, 3)"),
        ("app = cb.pipeline(label, both)", "it has no `b` - at `$`"),
        ("app = cb.pipeline(cb.ensemble(a=text, b=text), both)", "string is no number - at `$.b`"),
        ("app = cb.pipeline(label, cb.pick('c'))", "which has no field `c` for pick: there are a"),
        ("app = cb.pipeline(label, cb.switch('c', x=text))", "which has no field `c` for switch"),
        ("a = cb.pipeline(text, route='/x')\nb = cb.pipeline(label, route='/x')", "/x is the route of `a` and of `b`"),
        ("a = cb.pipeline(text, route='/label')", "/label is the route of `label` and of `a`"),
        ("a = cb.ensemble(x=cb.stage('labels'), y=cb.stage('labels'))", "are both called `labels`: give one a name"),
        (
            "@cb.service\nclass A:\n    @cb.route('/x/{i}', methods=['GET'])\n    def get(self, i: int) -> int: ...\n"
            "    @cb.route('/x/{i}', methods=['PUT', 'GET'])\n    def put(self, i: int) -> int: ...",
            "`A.get` and `A.put` are both called by GET /x/{i}: give one other methods, or another path, such as "
            "/x/{i}/put",
        ),
        ("@cb.service\nclass A:\n    b = cb.depends(3)", "depends takes a service, a function or a route"),
    ],
)
def test_a_mistake_is_one_clear_line(code: str, message: str, tmp_path: Path) -> None:
    start = (
        "from collections.abc import Iterator\nimport callboard as cb\nimport numpy as np\n"
        "from dataclasses import dataclass\nfrom numpy.typing import NDArray\n"
        "class Box:\n    def predict(self): ...\n"
        "@dataclass\nclass Label:\n    a: str\n"
        "@cb.function\ndef text(x: str) -> str: ...\n@cb.function\ndef count(x: int) -> int: ...\n"
        "@cb.function\ndef array(x: str) -> NDArray[np.float32]: ...\n"
        "@cb.function\ndef wide(x: NDArray[np.float64]) -> str: ...\n"
        "from typing import Literal as L\nfloat32 = np.dtype[np.float32]\n"
        "@cb.function\ndef pair(x: str) -> np.ndarray[tuple[L[2]], float32]: ...\n"
        "@cb.function\ndef points(x: np.ndarray[tuple[int, L[3]], float32]) -> str: ...\n"
        "@cb.function\ndef label(x: str) -> Label: ...\n@cb.function\ndef both(a: str, b: int) -> str: ...\n"
        "@cb.function\ndef words(x: str) -> Iterator[str]: ...\n"
    )
    (tmp_path / "app.py").write_text(start + code + "\n")
    with pytest.raises((TargetError, TypeError, ValueError)) as refused:
        load_app(str(tmp_path / "app.py")).describe()
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "code",
    [
        "cb.pipeline(whole, real)",
        "cb.pipeline(real, whole)",
        "cb.pipeline(maybe, whole)",
        "cb.pipeline(anything, whole)",
        "cb.pipeline(array, numbers)",
        "cb.pipeline(cb.ensemble(a=whole, b=anything), both)",
        "cb.pipeline(cb.rename(a='b'), whole)",
        "cb.pipeline(array, points, points)",
    ],
)
def test_what_may_fit_is_no_mistake(code: str, tmp_path: Path) -> None:
    start = (
        "import callboard as cb\nimport numpy as np\nfrom typing import Any\nfrom numpy.typing import NDArray\n"
        "@cb.function\ndef whole(x: int) -> int: ...\n@cb.function\ndef real(x: float) -> float: ...\n"
        "@cb.function\ndef maybe(x: int) -> int | None: ...\n@cb.function\ndef anything(x: Any) -> Any: ...\n"
        "@cb.function\ndef array(x: int) -> NDArray[np.float32]: ...\n"
        "@cb.function\ndef numbers(x: list[float]) -> int: ...\n@cb.function\ndef both(a: int, b: str) -> str: ...\n"
        "Points = np.ndarray[tuple[int, int], np.dtype[np.float32]]\n"
        "@cb.function\ndef points(x: Points) -> Points: ...\n"
    )
    (tmp_path / "app.py").write_text(f"{start}app = {code}\n")
    assert load_app(str(tmp_path / "app.py")).describe()["pipelines"]


def test_the_test_client_says_that_a_model_needs_the_node() -> None:
    with pytest.raises(Exception, match=r"cb.onnx\('m.onnx'\) is run by the node: serve the app"):
        cb.test_client(cb.pipeline(composed.clean, cb.onnx("m.onnx")))


def test_the_test_client_says_that_a_pipeline_needs_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "callboard._native", None)
    with pytest.raises(TargetError, match="wheels have it"), cb.test_client(composed.app):
        pass
