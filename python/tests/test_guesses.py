"""What users of other frameworks write first: each is answered with what is written here."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest

import callboard as cb
from callboard import _elsewhere
from callboard._envelope import encode
from callboard._errors import _warn_of_headers, error_map
from callboard._target import TargetError, routes_of

fastapi = pytest.importorskip("fastapi")


def refused(app: Any) -> str:
    with pytest.raises(TargetError) as told:
        routes_of(app, "app")
    return str(told.value)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("get", r"@cb.function\(route='/x', methods=\['GET'\]\)"),
        ("post", r"methods=\['POST'\]"),
        ("FastAPI", "no object for the app"),
        ("Depends", "did you mean 'depends'"),
        ("Body", "a field of the body"),
        ("Path", "item_id.*did you mean 'File'"),
        ("BackgroundTasks", r"context\.after"),
        ("StreamingResponse", "`yield`"),
        ("batch", "did you mean 'batched'"),
        ("deployment", "did you mean 'service'"),
        ("servise", "did you mean 'service'"),
    ],
)
def test_a_name_of_another_framework_says_what_is_written_here(name: str, cure: str) -> None:
    with pytest.raises(AttributeError, match=f"callboard has no '{name}': .*{cure}"):
        getattr(cb, name)


@pytest.mark.parametrize(
    ("option", "cure"),
    [
        ("gpus", r"devices='auto'.*There are name, route,"),
        ("ray_actor_options", "devices="),
        ("workers", r"did you mean 'replicas'\? There are"),
        ("num_replicas", "did you mean 'replicas'"),
        ("path", "did you mean 'route'"),
        ("method", "did you mean 'methods'"),
        ("response_model", "the hint of the result"),
        ("max_ongoing_requests", r"@cb\.concurrent\(max=…\)"),
        ("nothing_like_it", "There are name, route"),
    ],
)
def test_an_option_of_another_framework_says_what_is_written_here(option: str, cure: str) -> None:
    with pytest.raises(TypeError, match=f"service has no option '{option}': .*{cure}"):
        cb.service(**{option: 1})
    # An option that this decorator has not is not offered.
    with pytest.raises(TypeError, match=r"batched has no option 'workers': There are max_batch_size, max_delay"):
        cb.batched(workers=2)  # type: ignore[call-overload]


def test_an_option_that_a_decorator_lacks_is_not_its_cure() -> None:
    told = (
        r"batched has no option 'num_gpus': the service has its devices: write `@cb\.service\(devices='auto'\)`\. There"
    )
    with pytest.raises(TypeError, match=told):
        cb.batched(num_gpus=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="batched has no option 'memory': There are max_batch_size, max_delay"):
        cb.batched(memory="4GiB")  # type: ignore[call-overload]


@pytest.mark.parametrize("table", ["NAMES", "FILES", "RESPONSE", "REQUEST", "CONTEXT", "CLIENT", "DEPENDENCY"])
def test_each_name_of_another_framework_leads_to_one_that_there_is(table: str) -> None:
    owners = {
        "NAMES": cb.__all__,
        "FILES": dir(cb.Image),
        "RESPONSE": dir(cb.Response),
        "REQUEST": dir(cb.Request),
        "CONTEXT": dir(cb.Context),
        "CLIENT": dir(cb.Client),
        "DEPENDENCY": ["map", "with_options"],
    }
    for name in getattr(_elsewhere, table):
        names = [*owners[table]]
        assert _elsewhere.cure(name, getattr(_elsewhere, table), names), name
        assert name not in names or table == "CLIENT", "it would never be asked for"


@pytest.mark.parametrize(
    ("owner", "name", "told"),
    [
        (cb.File(b""), "len", "File has no 'len': write `len(file)`"),
        (cb.File(b""), "size", "File has no 'size': write `len(file)`"),
        (cb.File(b""), "resize", "File has no 'resize'"),
        (cb.File(b""), "to_numpy", "File has no 'to_numpy'"),
        (cb.Audio(b""), "shape", "Audio has no 'shape'"),
        (cb.Audio(b""), "to_numpy", "Audio has no 'to_numpy': did you mean 'array'?"),
        (cb.Image(b""), "size", "Image has no 'size': write `len(file)` for its bytes, or `pil().size`"),
        (cb.Response(), "size", "a response has no 'size'"),
        (cb.Client("http://localhost:9"), "options", "Client has no 'options': did you mean 'with_options'?"),
        (cb.Context(), "place", "the context has no 'place'"),
    ],
)
def test_a_cure_names_nothing_that_is_private_or_not_there(owner: Any, name: str, told: str) -> None:
    with pytest.raises(AttributeError) as error:
        getattr(owner, name)
    assert str(error.value) == told


def test_a_path_as_the_only_argument_is_the_option_route() -> None:
    with pytest.raises(TypeError, match="write route='/x'"):
        cb.service("/x")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="write route='/x'"):
        cb.function("/x")  # type: ignore[call-overload]


@pytest.mark.parametrize("route", ["/items/<item_id>", "/items/:item_id"])
def test_a_parameter_in_the_words_of_another_framework_is_no_literal_path(route: str) -> None:
    with pytest.raises(ValueError, match=r"write a parameter as '/items/\{item_id\}'"):
        cb.function(route=route)(lambda item_id: item_id)
    with pytest.raises(ValueError, match="Its type is the hint of the argument"):
        cb.function(route="/items/{item_id:int}")(lambda item_id: item_id)


def test_marks_of_fastapi_are_refused_and_not_read_from_the_body() -> None:
    def header(name: str, user: str = fastapi.Header()) -> str:
        return user

    def query(name: str, limit: Annotated[int, fastapi.Query(ge=1)] = 10) -> int:
        return limit

    def depends(name: str, user: str = fastapi.Depends(header)) -> str:
        return user

    # The hints of this module are texts, and `fastapi` is known here only.
    for code in (header, query, depends):
        code.__globals__["fastapi"] = fastapi
    assert "`user`: `Header` of FastAPI: write `user: Annotated[…, cb.Header()]`" in refused(cb.function(header))
    assert "`limit`: `Query` of FastAPI: write `limit: Annotated[…, cb.Query()]`" in refused(cb.function(query))
    assert "who calls is told by `cb.auth`" in refused(cb.function(depends))


def test_an_exception_of_fastapi_has_its_status() -> None:
    error = fastapi.HTTPException(404, "no such item", headers={"x-reason": "gone"})
    assert error_map(error) == {"message": "no such item", "status": 404, "headers": [("x-reason", "gone")]}
    with pytest.raises(TypeError, match=r"the first argument is the status, not 'bad': HTTPException\(400, …\)"):
        cb.HTTPException("bad", 400)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "headers",
    [
        {"Set-Cookie": "a=b"},
        {"Content-Type": "text/plain"},
        {"Vary": "origin"},
        {"Server": "own"},
        {"Date": "today"},
        {"x-request-id": "7"},
        {"Access-Control-Allow-Origin": "*"},
        {"x-name": "\u540d"},
        {"x-count": 3},
        {"x y": "1"},
    ],
)
def test_an_exception_of_fastapi_loses_no_more_than_headers_that_cannot_be_sent(
    headers: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of_headers.cache_clear()
    told = {"message": "log in first", "status": 401, "headers": [("WWW-Authenticate", "Bearer")]}
    for _ in range(2):
        error = fastapi.HTTPException(401, "log in first", headers={"WWW-Authenticate": "Bearer", **headers})
        assert error_map(error) == told
    assert [next(iter(headers)) in record.getMessage() for record in caplog.records] == [True], "once"


def test_an_exception_of_fastapi_keeps_as_many_headers_as_can_be_sent() -> None:
    many = {f"x-{number}": "1" for number in range(20)}
    told = error_map(fastapi.HTTPException(429, {"why": 1}, headers={"Retry-After": "3", "retry-after": "4", **many}))
    assert (told["status"], told["retry_after_ms"], told["details"]) == (429, 3000, {"why": 1})
    assert told["headers"] == list(many.items())[:15]


def test_a_result_that_cannot_be_sent_names_its_cure() -> None:
    from fastapi.responses import JSONResponse, StreamingResponse

    waiting = asyncio.sleep(0)
    results: list[tuple[Any, str]] = [
        (JSONResponse({"a": 1}), "return the value; its status and headers are `context.response`"),
        (StreamingResponse(iter(["a"])), "a function with `yield` is a stream"),
        (range(3), "give a list"),
        (collections.deque([1]), "give a list"),
        (waiting, "it is to be awaited"),
    ]
    for value, cure in results:
        with pytest.raises(TypeError, match=cure):
            encode(value)
    waiting.close()


def test_a_set_is_no_batch() -> None:
    @cb.service
    class Words:
        @cb.batched(max_batch_size=4)
        def predict(self, words: list[str]) -> list[str]:
            return set(words)  # type: ignore[return-value]

    with cb.test_client(Words) as client, pytest.raises(cb.CallError, match="returned `set`, not a list of 1 outputs"):
        client.client().call("/words", "a")


def test_a_class_without_a_route_is_told_which_methods_could_be_one() -> None:
    class Model:
        def setup(self) -> None: ...

        def classify(self, text: str) -> str:
            return text

    class Called:
        def __call__(self, text: str) -> str:
            return text

    assert refused(Model) == (
        "app has no method `predict`, and none with @route; is `classify` meant to be it? Or mark `classify` with "
        "@cb.route('/path')"
    )
    assert refused(Called).endswith("is `__call__` meant to be it?")


def test_a_file_knows_the_words_of_other_frameworks() -> None:
    file, image = cb.File(b"abc"), cb.Image(b"abc")
    for name, cure in [
        ("read", "did you mean 'data'"),
        ("filename", "did you mean 'name'"),
        ("content_type", "did you mean 'media_type'"),
        ("medja_type", "did you mean 'media_type'"),
    ]:
        with pytest.raises(AttributeError, match=f"File has no '{name}': {cure}"):
            getattr(file, name)
    with pytest.raises(AttributeError, match=r"Image has no 'convert': write `pil\(\)\.convert\(…\)`"):
        image.convert  # noqa: B018
    assert not hasattr(file, "__array__")


def test_a_response_and_the_marks_of_arguments_know_the_words_of_other_frameworks() -> None:
    response: Any = cb.Context().response
    for name, cure in [("status", "did you mean 'status_code'"), ("content_type", "did you mean 'media_type'")]:
        with pytest.raises(AttributeError, match=f"a response has no '{name}': {cure}"):
            setattr(response, name, 201)
    with pytest.raises(AttributeError, match="a response has no 'cookies': write `set_cookie"):
        response.cookies["a"] = "b"
    response.status_code, response.media_type = 201, "text/html"
    marks: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
        (cb.Header, {"alias": "x-user"}, r"Header has no option 'alias': .*cb\.Header\('x-name'\)"),
        (cb.Query, {"ge": 1}, r"Query has no option 'ge': write `Annotated\[…, cb\.Query\(\), cb\.Field\(ge=…\)\]`"),
        (cb.Form, {"default": 1}, "Form has no option 'default': a default is that of the argument"),
    ]
    for mark, options, cure in marks:
        with pytest.raises(TypeError, match=cure):
            mark(**options)
    assert (cb.Header("x").name, cb.Query(name="y").name, cb.Cookie().name) == ("x", "y", None)


def test_a_function_in_the_place_of_a_type_names_the_type() -> None:
    def anything(value: any) -> int:  # type: ignore[valid-type]
        return 1

    def array(value: np.array) -> int:  # type: ignore[valid-type]
        return 1

    for code, cure in [(anything, "typing.Any"), (array, "np.ndarray")]:
        assert refused(cb.function(code)).endswith(f"is not supported: did you mean `{cure}`?")


def test_a_client_knows_the_words_of_other_clients() -> None:
    with cb.Client("http://localhost:9") as client:
        for name, cure in [
            ("post", r"write `call\('/x', value\)`, or `send\("),
            ("predict", "write `call"),
            ("batch", "did you mean 'map'"),
            ("strem", "did you mean 'stream'"),
        ]:
            with pytest.raises(AttributeError, match=f"Client has no '{name}': {cure}"):
                getattr(client, name)
        with pytest.raises(TypeError, match=r"a call has no option 'json': the input is the second argument"):
            client.call("/x", json={"a": 1})  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"a call has no option 'a': there is timeout"):
            client.call("/x", a=1)  # type: ignore[call-arg]


def test_a_dependency_is_called_and_stands_in_the_class() -> None:
    @cb.service
    class Inner:
        def predict(self, text: str) -> str:
            return text

    @cb.service
    class Outer:
        inner = cb.depends(Inner)

        async def predict(self, text: str) -> str:
            return await self.inner.predict.remote(text)  # type: ignore[no-any-return]

    @cb.service
    class Late:
        def __init__(self) -> None:
            self.inner = cb.depends(Inner)

        def predict(self, text: str) -> str:
            return self.inner.predict(text)  # type: ignore[no-any-return]

    for app, cure in [
        (Outer, "a route of a dependency has no 'remote': call it"),
        (Late, "write it in its body, and not in `__init__`"),
    ]:
        with cb.test_client(app) as client, pytest.raises(cb.CallError, match=cure):
            client.client().call(f"/{app.__name__.lower()}", "a")
    with pytest.raises(TypeError, match=r"write depends\(Inner\)"):
        cb.depends(Inner())


@pytest.mark.parametrize("default", [2, None])
def test_a_lone_parameter_has_its_default_where_nothing_is_given(default: int | None) -> None:
    @cb.function
    def lone(n: int | None = default) -> list[Any]:
        return [n]

    @cb.function
    def text(words: str = "none") -> str:
        return words

    @cb.function
    def several(file: cb.File | None = None, n: int = 2) -> list[Any]:
        return [file, n]

    with cb.test_client(several) as client:
        assert client.call() == client.client().call("/several") == client.client().send("several") == [None, 2]
    with cb.test_client(lone) as client:
        assert client.client().send("lone") == [default]
        assert client.client().call("/lone", 3) == [3]
    with cb.test_client(text) as client:
        assert client.call() == client.client().send("text") == client.client().call("/text", None) == "none"
        with pytest.raises(cb.CallError, match="the body is the value of the one parameter `words`"):
            client.client().call("/text", {})
    assert routes_of(text, "text")[0].signature.input_schema() == {"type": "string", "default": "none"}
