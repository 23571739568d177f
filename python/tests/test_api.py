"""The decorators, their options and their pages; the errors that users raise."""

from __future__ import annotations

import inspect
import re
import time
from pathlib import Path
from typing import Any

import app
import pytest
from node import HERE

import callboard as cb
from callboard import _headers
from callboard._options import hyphened, timeout_ms
from callboard._target import routes_of
from callboard.client._base import BaseClient, CallSettings


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
        "affinity": [(0, 1), 2],
        "replicas": 2,
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
        "affinity": [[0, 1], 2],
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
        ("env", [{"A": 1}]),
        ("affinity", [[0], [1]]),
        ("affinity", [[0, 0]]),
        ("affinity", [-1]),
        ("affinity", [[]]),
        ("affinity", [{0}]),
        ("affinity", 1),
        ("device", 0),
        ("devices", "cuda:0"),
        ("devices", []),
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


def test_a_route_lists_what_its_code_reads_of_a_request() -> None:
    @cb.service(headers=["X-User"], query=("lang",))
    class Reads:
        def predict(self, x: int) -> int:
            return x

        @cb.route("/same")
        def same(self, x: int) -> int:
            return x

        @cb.route("/other", headers=[], query=["Top"])
        def other(self, x: int) -> int:
            return x

    described = [route.describe() for route in routes_of(Reads, "Reads")]
    assert [(each["headers"], each["query"]) for each in described] == [
        (["x-user"], ["lang"]),
        (["x-user"], ["lang"]),
        ([], ["Top"]),
    ]
    many = [f"x-{number}" for number in range(65)]
    for wrong in ("x-user", [7]):
        with pytest.raises(TypeError, match="headers"):
            cb.function(headers=wrong)(app.add)  # type: ignore[arg-type]
    for names in (["a b"], many, ["x" * 129], ["X", "x"]):
        with pytest.raises(ValueError, match="headers"):
            cb.function(headers=names)(app.add)
    for names in (["a\n"], many, ["é" * 65], ["x", "x"]):
        with pytest.raises(ValueError, match="query"):
            cb.function(query=names)(app.add)
    assert cb.function(headers=many[:64], query=["X", "x"])


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
    names = edge.partition("const OF_RESPONSES")[2].partition("=")[2].partition("]")[0]
    assert tuple(re.findall(r'"([^"]+)"', names)) == _headers.OF_RESPONSES


@pytest.mark.parametrize("env", [{"DB=URL": "hunter2"}, {"A": "hunter2\0"}, "hunter2", [{}, {"": "hunter2"}]])
def test_no_error_shows_the_value_of_a_variable(env: Any) -> None:
    with pytest.raises(TypeError, match=r"^env=") as error:
        cb.function(env=env)(app.add)
    assert "hunter2" not in str(error.value)
