"""The decorators, the description of services, and the test client."""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import app
import msgspec
import numpy as np
import pytest
from node import ENVIRONMENT
from numpy.typing import NDArray

import callboard as cb
from callboard import _headers
from callboard._options import hyphened, timeout_ms
from callboard._schema import schema
from callboard._target import TargetError, routes_of
from callboard.client._base import BaseClient, CallSettings
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


# ---- Description -----------------------------------------------------------------------------------------------------


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
        "input": {"type": "string"},
        "raw_body": None,
        "output": {"title": "Label", "type": "object", "properties": label, "required": ["name", "score"]},
        "examples": ["good", "fine"],
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
        "env": {},
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
        ("import callboard as cb\n@cb.function\n@cb.concurrent(max=2)\ndef f(a: str): ...", "@concurrent is for"),
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


# ---- Decorators ------------------------------------------------------------------------------------------------------


def test_a_decorated_class_stays_a_plain_class() -> None:
    service = app.Sentiment()
    service.setup("cpu", 0, cb.SetupContext())
    assert service.predict(["ab"]) == [app.Label("good", 1.0)]
    assert app.add(1, b=2) == 3


def test_names_that_do_not_exist_are_answered_with_the_nearest() -> None:
    for wrong, right in [("HttpException", "HTTPException"), ("services", "service"), ("batch", "batched")]:
        with pytest.raises(AttributeError, match=f"did you mean '{right}'"):
            getattr(cb, wrong)
    with pytest.raises(TypeError, match="no option 'replica': did you mean 'replicas'"):
        cb.service(replica=2)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="did you mean 'idempotent'"):
        cb.service(contract="idempotnet")(app.Label)  # type: ignore[arg-type]


def test_the_settings_of_a_start_are_options_and_are_described() -> None:
    options: dict[str, Any] = {
        "start_timeout": "5m",
        "max_delay": "20ms",
        "queue": 7,
        "memory_limit": "2GiB",
        "env": {"OMP_NUM_THREADS": "4"},
        "device": "cuda:1",
    }

    class Slow:
        def predict(self, x: int) -> int:
            return x

        @cb.route("/own")
        @cb.batched(max_delay=0.5)
        def own(self, xs: list[int]) -> list[int]:
            return xs

    first, own = (route.describe() for route in routes_of(cb.service(**options)(Slow), "app.py:Slow"))
    expected = {
        "start_timeout_ms": 300_000,
        "max_delay_ms": 20,
        "queue": 7,
        "memory_limit": "2GiB",
        "env": {"OMP_NUM_THREADS": "4"},
    }
    assert {key: first[key] for key in expected} == expected
    assert own["max_delay_ms"] == 500
    (fn,) = routes_of(cb.function(name="fn", **options)(lambda x: x), "app.py:fn")
    assert {key: fn.describe()[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("start_timeout", "soon"),
        ("start_timeout", 0),
        ("max_delay", "2m"),
        ("max_delay", True),
        ("queue", 0),
        ("queue", 2_000_000),
        ("memory_limit", "4GB"),
        ("memory_limit", 0),
        ("memory_limit", "0GiB"),
        ("memory_limit", 0.5),
        ("env", {"A": 1}),
        ("env", {"A=B": "c"}),
        ("env", "A=b"),
        ("device", 0),
    ],
)
def test_a_wrong_option_is_named(option: str, wrong: Any) -> None:
    def fn(x: int) -> int:
        return x

    decorators: list[Any] = [cb.service, cb.function] + ([cb.batched] if option == "max_delay" else [])
    for decorator in decorators:
        with pytest.raises((TypeError, ValueError), match=f"^{option}="):
            decorator(**{option: wrong})(type("Wrong", (), {}) if decorator is cb.service else fn)


def test_replicas_are_a_number_or_two_bounds() -> None:
    for given, described in [(3, 3), ((0, 4), {"min": 0, "max": 4}), ((2, 2), {"min": 2, "max": 2})]:

        @cb.function(replicas=given)
        def same(x: int) -> int:
            return x

        (route,) = routes_of(same, "same")
        assert route.describe()["replicas"] == described
    for wrong in [0, (4, 0), (0, 0), (-1, 2), (1,), (1, 2, 3), ("a", 2), "2"]:
        with pytest.raises(ValueError, match="replicas="):
            cb.function(replicas=wrong)(app.add)  # type: ignore[arg-type]


def test_the_readme_has_every_name() -> None:
    readme = (HERE.parent / "README.md").read_text()
    for name in cb.__all__:
        assert name == "__version__" or f"| `{name}" in readme or f"| `@{name}" in readme, name


def test_the_readme_has_every_extra_with_its_packages() -> None:
    project, readme = ((HERE.parent / name).read_text() for name in ("pyproject.toml", "README.md"))
    table = re.search(r"\[project.optional-dependencies]\n(.*?)\n\n", project, re.DOTALL)
    rows = re.findall(r"^\| (`.+) \| (.+) \| .+ \|$", readme.partition("|---|")[2].partition("\n\n")[0], re.MULTILINE)
    shown = [(extra, packages) for names, packages in rows for extra in re.findall(r"`(\w+)`", names)]
    for extra, requirements in re.findall(r"^(\w+) = \[(.+)]$", table[1] if table else "", re.MULTILINE):
        (packages,) = [packages for name, packages in shown if name == extra]
        assert set(re.findall(r'"(\w+)', requirements)) <= set(packages.split(", ")), extra


def test_the_reference_has_every_setting_and_option_of_a_client() -> None:
    page = (HERE.parents[1] / "docs/python/reference.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)`[^|]*\|.*\|$", page, re.MULTILINE)
    parameters = inspect.signature(BaseClient.__init__).parameters.values()
    settings = [(each.name, str(each.default)) for each in parameters if each.kind is each.KEYWORD_ONLY]
    assert [row for row in rows if row[0] in dict(settings)] == settings
    for option in CallSettings.__annotations__:
        assert f"\n| `{option}` | " in page, option


@pytest.mark.parametrize("wrong", ["5", "s", "-1s", "0ms", 0, float("nan"), float("inf"), 10**400, True, None, [5]])
def test_a_wrong_timeout_is_refused(wrong: Any) -> None:
    is_time = isinstance(wrong, (str, int, float)) and not isinstance(wrong, bool)
    with pytest.raises(ValueError if is_time else TypeError, match="timeout="):
        timeout_ms(wrong)


def test_timeouts_and_routes() -> None:
    assert [timeout_ms(each) for each in ("5s", "200ms", "1.5s", 2, 0.25, "1m")] == [5000, 200, 1500, 2000, 250, 60_000]
    assert [hyphened(each) for each in ("ImageSearch", "HTTPEcho", "image_search", "A", "Top5")] == [
        "image-search",
        "http-echo",
        "image-search",
        "a",
        "top5",
    ]


def test_a_context_knows_its_time() -> None:
    assert cb.Context().remaining() is None
    assert cb.Context(deadline=time.monotonic() - 1).remaining() == 0
    remaining = cb.Context(deadline=time.monotonic() + 10).remaining()
    assert remaining is not None and 9 < remaining <= 10


# ---- Hints -----------------------------------------------------------------------------------------------------------


@dataclass
class Box:
    corners: tuple[int, int]
    mask: NDArray[np.uint8]
    names: dict[int, str]


class Options(TypedDict, total=False):
    top: int


def accepts(hint: Any, value: Any) -> Any:
    def f(x: Any) -> None: ...

    f.__annotations__["x"] = hint
    (route,) = routes_of(f, "f")
    return route.signature.arguments(value)["x"]


def test_inputs_are_converted_to_their_hints() -> None:
    box = accepts(Box, {"corners": [1, 2], "mask": [[1, 0]], "names": {"7": "a"}})
    assert (box.corners, box.names, box.mask.dtype) == ((1, 2), {7: "a"}, np.uint8)
    assert accepts(Options, {"top": 3}) == {"top": 3}
    assert accepts(list[float], np.ones(2, np.float32)) == [1.0, 1.0]
    assert accepts(float, np.float32(0.5)) == 0.5
    assert accepts(bytes, "AP8=") == b"\x00\xff"
    assert accepts(NDArray[np.float32] | None, None) is None
    assert accepts(NDArray[np.floating], [1, 2]).dtype == np.float64
    assert accepts(NDArray[np.float64], []).shape == (0,)
    assert accepts(np.ndarray, [[1], [2]]).shape == (2, 1)
    assert accepts(NDArray[np.str_], ["a", "b"]).tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, "7", "Expected `int`, got `str` - at `$`"),
        (list[int], [1, "a"], "Expected `int`, got `str` - at `$[1]`"),
        (NDArray[np.uint8], [256], "Expected an array of uint8, got int64 that does not fit - at `$`"),
        (NDArray[np.int64], [0.5], "Expected an array of int64, got float64 that does not fit - at `$`"),
        (NDArray[np.float32], [[1], [1, 2]], "Expected an array: the lists differ in length - at `$`"),
        (NDArray[np.float32], {"a": 1}, "Expected an array of numbers - at `$`"),
        (Box, {"corners": [1, 2], "mask": [], "names": []}, "Expected `object`, got `array` - at `$.names`"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_their_place(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(cb.InvalidInput) as refused:
        accepts(hint, value)
    assert str(refused.value) == message


def test_a_parameter_called_context_may_be_an_input() -> None:
    @cb.function
    def answer(question: str, context: str) -> str:
        return question + context

    with cb.test_client(answer) as client:
        assert client.call({"question": "a", "context": "b"}) == "ab"


def test_unknown_and_missing_parameters_are_refused() -> None:
    with cb.test_client(app.add) as client:
        with pytest.raises(cb.InvalidInput, match="unknown field `c`"):
            client.call({"a": 1, "c": 2})
        with pytest.raises(cb.InvalidInput, match="missing required field `a`"):
            client.call({})


def test_models_of_pydantic_are_validated() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Query(pydantic.BaseModel):  # type: ignore[misc,name-defined]
        text: str
        top: int = pydantic.Field(default=1, ge=1)

    @cb.function
    def search(queries: list[Any]) -> Any:
        return queries[0]

    search.__annotations__["queries"] = list[Query]
    with cb.test_client(search) as client:
        assert client.call([{"text": "a"}]) == {"text": "a", "top": 1}
        with pytest.raises(cb.InvalidInput, match=r"Input should be .* to 1 - at `\$\[0\]\.top`") as refused:
            client.call([{"text": 7, "top": 0}])
        assert refused.value.fields == [
            ("$[0].text", "Input should be a valid string"),
            ("$[0].top", "Input should be greater than or equal to 1"),
        ]
    (route,) = routes_of(search, "search")
    assert route.signature.input_schema()["items"]["properties"]["top"]["minimum"] == 1


def test_a_service_takes_bytes_as_a_file_in_memory() -> None:
    @cb.function
    def first(data: io.BytesIO) -> str:
        return data.read(1).decode()

    with cb.test_client(first) as client:
        assert client.call(b"ab") == client.call("YWI=") == "a"
        with pytest.raises(cb.InvalidInput, match=r"^Invalid base64 encoded string - at `\$`$"):
            client.call("*")
    (route,) = routes_of(first, "first")
    assert route.signature.input_schema() == {"type": "string", "contentEncoding": "base64"}


def test_no_module_of_the_package_can_read_a_pickle() -> None:
    """Neither imports what does, nor allows NumPy to."""
    forbidden = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    for file in (HERE.parent / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not forbidden & {name.partition(".")[0] for name in names}, (file, node.lineno)
            assert not (isinstance(node, ast.keyword) and node.arg == "allow_pickle"), (file, node.lineno)


def test_limits_of_pydantic_are_checked() -> None:
    pydantic = pytest.importorskip("pydantic")
    hint = list[Annotated[int, pydantic.Field(ge=0, description="a count")]]
    assert accepts(hint, [0]) == [0]
    with pytest.raises(cb.InvalidInput, match="Expected `int` >= 0"):
        accepts(hint, [-1])
    assert accepts(Annotated[str, cb.Field(max_length=2)], "ab") == "ab"


def test_a_field_may_be_called_discriminator() -> None:
    @dataclass
    class Test:
        discriminator: str

    class Left(msgspec.Struct, tag="left"):
        value: int

    class Right(msgspec.Struct, tag="right"):
        value: int

    assert schema(Test)["properties"] == {"discriminator": {"type": "string"}}
    # The word of OpenAPI beside a choice refers to definitions that are inlined here.
    assert list(schema(Left | Right)) == ["anyOf"]


def test_a_context_may_be_optional() -> None:
    @cb.function
    def where(text: str, context: cb.Context | None = None) -> str:
        return f"{text} {context and context.route}"

    @cb.function
    @cb.batched
    def all_of_them(texts: list[str], contexts: list[cb.Context] | None = None) -> list[int]:
        return [len(contexts or ()) for _ in texts]

    (route,) = routes_of(where, "where")
    assert route.signature.input_schema() == {"type": "string"}
    with cb.test_client(where) as client:
        assert client.call("at", context=cb.Context(route="/here")) == "at /here"
    with cb.test_client(all_of_them) as client:
        assert client.batch(["a", "b"]) == [2, 2]


def test_a_batch_of_arrays_is_stacked_and_divided() -> None:
    @cb.function
    @cb.batched
    def twice(items: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        stacked = np.stack(items)
        assert stacked.shape == (2, 4, 3)
        return stacked * 2

    with cb.test_client(twice) as client:
        outputs = client.batch([np.ones((4, 3), np.float32)] * 2)
    assert [(each.shape, each.dtype, each.max()) for each in outputs] == [((4, 3), np.float32, 2.0)] * 2


# ---- The test client -------------------------------------------------------------------------------------------------


def test_the_test_client_calls_as_a_worker_does() -> None:
    with cb.test_client(app.Sentiment, word="fine") as client:
        assert client.call("ab") == {"name": "fine", "score": 1.0}
        assert client.call(method="where") == "cpu 0 Sentiment"
        good, bad = client.batch(["ab", ""])
        assert good["score"] == 1.0 and bad.status_code == 422
    with cb.test_client(app.Numbers) as client:
        assert client.call({"count": 2}) == [{"n": 0}, {"n": 1}]
    with cb.test_client(app.Chat) as client:
        assert client.call("a b") == ["a", "b"]
        with pytest.raises(cb.HTTPException, match="422: empty prompt"):
            client.call("")
    with cb.test_client(app.twice) as client:
        assert client.batch([1, "x", 3])[::2] == [2.0, 6.0]


# ---- The doctor ------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"Set-Cookie": "a=b"}, "is the server's own"),
        ({"content-length": "3"}, "is the server's own"),
        ({"Access-Control-Allow-Origin": "*"}, "is the server's own"),
        ({"a b": "c"}, "has characters that HTTP does not allow"),
        ({"a": "b\r\nc: d"}, "has characters that HTTP does not allow"),
        ({"a": 3}, "must be texts"),
        ({"a": "b" * 2048}, "with 2048 bytes in all"),
        ({f"a{number}": "" for number in range(17)}, "at most 16"),
        ([("a", "")] * 17, "at most 16"),
        ({"X-A": "1", "x-a": "2"}, "the header 'x-a' is there twice: a list of pairs sends both"),
        ([("Retry-After", "1"), ("retry-after", "2")], "there is one time to retry"),
        ([("a", "b", "c")], "must be a pair of name and value"),
        (["ab"], "must be a pair of name and value"),
        ("ab", "must be a pair of name and value"),
    ],
)
def test_headers_that_an_error_cannot_have(headers: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cb.HTTPException(400, headers=headers)


def test_headers_of_an_error_are_pairs_in_their_order() -> None:
    pairs = [("Link", "</a>"), ("Retry-After", "3"), ("link", "</b>")]
    error = cb.HTTPException(400, headers=pairs)
    assert error.headers == pairs and error.other_headers == [pairs[0], pairs[2]] and error.retry_after == 3
    assert cb.HTTPException(400, headers=iter(pairs)).headers == pairs
    assert cb.HTTPException(400, headers={"a": "b"}).headers == [("a", "b")]


def test_the_edge_and_the_package_refuse_the_same_headers() -> None:
    edge = (Path(__file__).parents[2] / "crates/http/src/error/mapping.rs").read_text()
    names = edge.partition("const OWN_HEADERS")[2].partition("= [")[2].partition("]")[0]
    assert tuple(re.findall(r'"([^"]+)"', names)) == _headers.OWN


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
