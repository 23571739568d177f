"""What a file serves, as the commands of the package tell it, and what they say of a file that serves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from node import ENVIRONMENT

import callboard as cb
from callboard._target import TargetError, routes_of
from callboard.doctor import examine

HERE = Path(__file__).parent


def run_describe(target: str, cwd: Path = HERE) -> tuple[int, str, str]:
    found = subprocess.run(
        [sys.executable, "-m", "callboard.describe", target],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return found.returncode, found.stdout, found.stderr


def test_each_route_is_described() -> None:
    code, out, _ = run_describe("app.py")
    document = json.loads(out)
    assert (code, document["protocol"]) == (0, 1)
    services = {service["name"]: service for service in document["services"]}
    assert list(services)[:3] == ["Sentiment", "Sentiment.where", "Errors"]
    label = {"name": {"type": "string"}, "score": {"type": "number"}}
    assert services["Sentiment"] == {
        "name": "Sentiment",
        "target": "app.py:Sentiment",
        "route": "/sentiment",
        "method": "predict",
        "replicas_of": None,
        "input": {"type": "string"},
        "raw_body": None,
        "output": {"title": "Label", "type": "object", "properties": label, "required": ["name", "score"]},
        "examples": ["good", "fine"],
        "headers": [],
        "query": [],
        "methods": [],
        "openai": None,
        "aliases": [],
        "mcp": False,
        "documentation": None,
        "response": None,
        "request": [],
        "streams": False,
        "batched": True,
        "max_batch_size": 32,
        "replicas": 2,
        "timeout_ms": 5000,
        "contract": "idempotent",
        "warm": True,
        "share_setup": False,
        "start_timeout_ms": None,
        "max_delay_ms": None,
        "queue": None,
        "memory_limit": None,
        "devices": None,
        "env": {},
        "affinity": None,
        "concurrency": 1,
        "description": "Labels texts.",
        "parameters": ["texts"],
        "is_value": True,
    }
    assert services["Sentiment.where"]["target"] == "app.py:Sentiment.where"
    assert services["Sentiment.where"]["route"] == "/where"
    assert services["Numbers"]["streams"] and services["Numbers"]["output"]["type"] == "object"
    assert services["Numbers"]["input"]["properties"]["count"] == {"type": "integer", "minimum": 0}
    assert (services["Chat"]["concurrency"], services["Chat"]["max_batch_size"]) == (64, 1)
    array = {"type": "array", "description": "an array of float32", "examples": [[1.0, 1.0]]}
    assert services["Scale"]["input"]["properties"]["x"] == array
    assert services["add"]["input"] == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert (services["twice"]["route"], services["twice"]["method"]) == ("/twice", None)
    assert run_describe("app:Sentiment.where")[0] == 2
    assert json.loads(run_describe("app:add")[1])["services"][0]["target"] == "app:add"


def test_what_user_code_prints_goes_to_standard_error(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import os, callboard as cb\nprint('loud')\nos.system('echo louder')\n@cb.function\ndef f(a: int): ...\n"
    )
    code, out, err = run_describe("loud.py", tmp_path)
    assert code == 0 and json.loads(out)["services"][0]["name"] == "f"
    assert "loud" in err and "louder" in err


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", "app.py has no service"),
        ("import nothing_like_it", "app.py, line 1: ModuleNotFoundError"),
        ("raise ModuleNotFoundError(name='skimage')", "-m pip install scikit-image"),
        ("import callboard as cb\n@cb.service\nclass A: ...", "has no method `predict`"),
        ("import callboard as cb\ncb.batch", "did you mean 'batched'?"),
        ("import callboard as cb\n@cb.function\ndef f(a: open): ...", "f: the parameter `a`"),
        ("import callboard as cb\n@cb.function\n@cb.batched\ndef f(a: str): ...", "must be a list"),
        (
            "import callboard as cb\n@cb.function\n@cb.batched\n@cb.concurrent(max=2)\ndef f(a: list[str]): ...",
            "exclude each other",
        ),
    ],
)
def test_what_cannot_be_described_is_a_clear_line(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(source)
    code, out, err = run_describe("app.py", tmp_path)
    assert (code, out) == (2, "") and message in err.splitlines()[-1]
    assert run_describe("none.py", tmp_path) == (2, "", "callboard.describe: there is no file none.py\n")


class Node(msgspec.Struct):
    children: list[Node] = []


ADD = "import callboard as cb\n\n\n@cb.function\ndef add(a: int) -> int:\n    return a"
PACKAGE = {
    "shop/__init__.py": "",
    "shop/model.py": "K = 5\n",
    "shop/beside.py": "",
    "shop/app.py": f"from .model import K\n{ADD} + K\n",
    "shop/flat.py": f"import beside\n{ADD}\n",
    "queue/__init__.py": "",
    "queue/app.py": ADD,
}


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("shop/app.py", "."),
        ("shop.app", "."),
        ("shop.app:add", "."),
        ("app.py", "shop"),
        ("app.py:add", "shop"),
        # Files beside it are modules, too.
        ("shop/flat.py", "."),
        # The package has the name of another one that is loaded.
        ("queue/app.py", "."),
    ],
)
def test_a_file_of_a_package_and_a_module_are_targets(target: str, place: str, tmp_path: Path) -> None:
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    code, out, printed = run_describe(target, tmp_path / place)
    assert code == 0, printed
    assert [service["route"] for service in json.loads(out)["services"]] == ["/add"]


def test_an_error_of_an_import_tells_what_it_came_from(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("raise OSError('libcudart.so.12')\n")
    (tmp_path / "app.py").write_text(
        "try:\n    import helper\nexcept OSError as error:\n    raise RuntimeError('no model') from error\n"
    )
    code, _, printed = run_describe("app.py", tmp_path)
    told = "app.py, line 4: RuntimeError: no model; it came from helper.py, line 1: OSError: libcudart.so.12"
    assert (code, printed.strip().splitlines()[-1]) == (2, f"callboard.describe: {told}")


def test_an_error_of_an_import_whose_attributes_raise_is_told(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "class Bad(Exception):\n    __cause__ = __traceback__ = property(lambda self: 1 / 0)\nraise Bad('no model')\n"
    )
    code, _, printed = run_describe("app.py", tmp_path)
    assert (code, printed.strip().splitlines()[-1]) == (2, "callboard.describe: app.py, line 3: Bad: no model")


def test_a_syntax_error_keeps_its_line_and_its_caret(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("x = 1\ndef f(:\n    pass\n")
    code, _, printed = run_describe("app.py", tmp_path)
    told, line, caret = printed.rpartition("callboard.describe: ")[2].splitlines()
    assert (code, line, caret.strip()) == (2, "    def f(:", "^")
    assert told.startswith("app.py, line 2: SyntaxError: ")
    lines = list(examine(str(tmp_path / "app.py"), None))
    assert lines[-2:] == [line, caret]


@pytest.mark.parametrize("module", ["doctor", "describe", "prepare"])
def test_the_commands_of_the_package_say_how_they_are_called(module: str) -> None:
    command = [sys.executable, "-m", f"callboard.{module}", "--help"]
    asked = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout.startswith(f"usage: python -m callboard.{module} ")


def test_a_type_that_contains_itself_is_left_open() -> None:
    @cb.function
    def walk(node: Node) -> Node | None: ...

    (route,) = routes_of(walk, "walk")
    assert "$ref" not in json.dumps(route.describe())


def test_a_class_that_cannot_be_made_or_called_is_told_at_the_start() -> None:
    class Model:
        def __init__(self, path: str) -> None: ...
        def predict(self, x: int) -> int: ...

    class Misspelt:
        def predct(self, x: int) -> int: ...

    with pytest.raises(TargetError, match="missing a required argument: 'path': a service is made without arguments"):
        routes_of(Model, "app.py:Model")
    with pytest.raises(TargetError, match="has no method `predict`, and none with @route; is `predct` meant"):
        routes_of(Misspelt, "app.py:Misspelt")


def test_the_doctor_names_what_an_app_lacks_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever is installed here.
    monkeypatch.setattr("callboard.doctor._is_there", {"json", "beside", "app"}.__contains__)
    (tmp_path / "app.py").write_text(
        "import json, sklearn.svm\nfrom . import x\nfrom beside import y\n"
        "try:\n    import rare\nexcept ImportError: ...\n"
        "def f():\n    import other.part\n"
    )
    (tmp_path / "beside.py").write_text("import PIL\nimport app\n")
    said = list(examine(str(tmp_path / "app.py"), "0.0"))
    assert said[0].startswith("ok: the interpreter is ") and sys.executable in said[0]
    assert said[1].startswith(f"problem: the package callboard is {cb.__version__}, and the program 0.0; ")
    assert "lacks the modules sklearn, PIL, other; " in said[2]
    assert said[2].endswith("-m pip install scikit-learn pillow other")
    (tmp_path / "requirements.txt").write_text("")
    assert "-m pip install -r " in list(examine(str(tmp_path / "app.py"), None))[2]
    (tmp_path / "app.py").write_text("import json")
    assert list(examine(str(tmp_path / "app.py"), None))[1:] == [
        f"ok: the package callboard {cb.__version__}",
        f"ok: {tmp_path / 'app.py'} finds its 1 module",
    ]
    (tmp_path / "app.py").write_text("def")
    assert "line 1: invalid syntax; correct it" in list(examine(str(tmp_path / "app.py"), None))[2]
    assert "there is no file none.py" in list(examine("none.py", None))[2]
