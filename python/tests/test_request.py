"""Arguments from headers, query parameters and cookies: in this process, and on a node over HTTP and QUIC alike."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

pytest.importorskip("httpx")

import httpx
import request_app
from conftest import Served
from node import PROGRAM

import callboard as cb
from callboard import _context
from callboard._target import TargetError, routes_of

APP = Path(__file__).with_name("request_app.py")
USER = {"X-User": "ada"}


@contextlib.contextmanager
def client_of(request: pytest.FixtureRequest, service: type) -> Iterator[cb.Client]:
    if request.param == "local":
        with cb.test_client(service) as local:
            yield local.client()
        return
    if request.param == "quic":
        pytest.importorskip("callboard._native")
    with cb.Client(getattr(request.getfixturevalue("node"), request.param)) as found:
        yield found


@pytest.fixture(params=["local", "http", "quic"])
def client(request: pytest.FixtureRequest) -> Iterator[cb.Client]:
    with client_of(request, request_app.Greet) as found:
        yield found


@pytest.fixture(params=["local", "http", "quic"])
def shelf(request: pytest.FixtureRequest) -> Iterator[cb.Client]:
    with client_of(request, request_app.Shelf) as found:
        yield found


@pytest.fixture(params=["local", "http", "quic"])
def reader(request: pytest.FixtureRequest) -> Iterator[cb.Client]:
    with client_of(request, request_app.Reader) as found:
        yield found


@pytest.fixture(params=["local", "http", "quic"])
def items(request: pytest.FixtureRequest) -> Iterator[cb.Client]:
    with client_of(request, request_app.Items) as found:
        yield found


def test_arguments_come_from_headers_query_parameters_and_cookies(client: cb.Client) -> None:
    plain = ["a", "ada", None, 10, [], "light"]
    assert client.call("/greet", "a", headers=USER) == plain
    headers = {**USER, "x-times": "3", "cookie": 'other=1; theme="dark"; theme=late'}
    given = ["a", "ada", 3, 5, [1, 2], "dark"]
    assert client.call("/greet", "a", headers=headers, query={"limit": 5, "tag": "1,2", "name": "b"}) == given
    assert client.with_options(headers=USER).send("greet", "a") == plain
    assert client.call("/greet/many", "a", headers=USER) == "a ada"
    # The code sees no more of the request than it did.
    assert client.call("/greet/nobody", headers=headers, query={"limit": 5}) == ["ada", {"x-user": "ada"}, {}]


def test_an_argument_that_is_missing_or_does_not_fit_is_named_with_its_place(client: cb.Client) -> None:
    with pytest.raises(cb.CallError) as raised:
        client.call("/greet", "a", headers={"x-times": "many"}, query={"limit": 0, "tag": "1,b"})
    assert raised.value.status_code == 422
    assert raised.value.details["fields"] == [
        {"path": "header.x-user", "message": "the argument `user` needs the header `x-user`"},
        {"path": "header.x-times", "message": "Expected `int | null`, got another text"},
        {"path": "query.limit", "message": "Expected `int` >= 1"},
        {"path": "query.tag[1]", "message": "Expected `int`, got another text"},
    ]
    assert "`user` needs the header `x-user`" in raised.value.message
    assert "Expected `int` >= 1 - at `query.limit`" in raised.value.message


def test_lines_of_a_header_are_one_text_and_a_query_parameter_comes_once(node: Served) -> None:
    def post(query: str, *headers: tuple[str, str]) -> httpx.Response:
        return httpx.post(f"{node.http}/greet{query}", json="a", headers=headers)

    lines = [("x-user", "ada"), ("X-User", "bob"), ("cookie", "a=1"), ("cookie", "theme=dark")]
    assert post("?tag=1%2C2", *lines).json() == ["a", "ada, bob", None, 10, [1, 2], "dark"]
    twice = post("?tag=1&tag=2", ("x-user", "ada"))
    assert twice.status_code == 400
    assert twice.json()["message"] == "query parameter `tag` must be given once; a list is written `tag=a,b`"


def test_openapi_has_the_arguments_as_parameters_and_not_in_the_body(node: Served) -> None:
    document = httpx.get(f"{node.http}/openapi.json").json()
    operation = document["paths"]["/greet"]["post"]
    own = [parameter for parameter in operation["parameters"] if "name" in parameter]
    assert [(each["in"], each["name"], each["required"]) for each in own] == [
        ("header", "x-user", True),
        ("header", "x-times", False),
        ("query", "limit", False),
        ("query", "tag", False),
        ("cookie", "theme", False),
    ]
    assert own[2]["schema"] == {"type": "integer", "minimum": 1, "default": 10}
    assert (own[3]["style"], own[3]["explode"]) == ("form", False)
    body = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert document["components"]["schemas"][body] == {"type": "string"}
    # Without a type a header that the code may read is a text.
    outer = document["paths"]["/outer"]["post"]["parameters"][0]
    assert outer == {"in": "header", "name": "x-user", "required": False, "schema": {"type": "string"}}


def test_a_service_that_is_called_by_another_one_gets_what_the_outer_route_lists(node: Served) -> None:
    expected = ["a", "ada", None, 10, [], "light"]
    assert httpx.post(f"{node.http}/outer", json="a", headers=USER).json() == expected
    with cb.test_client(request_app.Outer) as local:
        assert local.client().call("/outer", "a", headers=USER) == expected


def test_code_sees_the_head_of_its_request_as_far_as_its_route_lists_it(node: Served) -> None:
    headers = {**USER, "authorization": "Bearer t", "cookie": "a=1; b=2", "x-other": "no"}
    query = {"page": "2", "other": "no"}
    seen = ["GET", "/head/a%20b", {"page": ["2"]}, "ada", {"a": "1", "b": "2"}, "t", "127.0.0.1"]
    assert httpx.get(f"{node.http}/head/a%20b", headers=headers, params=query).json() == seen
    with cb.test_client(request_app.head) as local:
        assert local.client().call("GET /head/a%20b", headers=headers, query=query) == seen
    unread = ["POST", "/nothing", {}, {}]
    null = {"content-type": "application/json", **headers}
    assert httpx.post(f"{node.http}/nothing", headers=null, params=query, content=b"null").json() == unread
    with cb.test_client(request_app.nothing) as local:
        assert local.client().call("/nothing", headers=headers, query=query) == local.call() == unread


_SEEN = (
    "A route sees the path, the method and the client of its requests where it lists headers or query parameters, "
    "declares methods, or has a path with parameters."
)


@pytest.mark.parametrize(
    ("options", "called", "is_seen"),
    [
        ({"headers": ["x"]}, "/x", True),
        ({"query": ["x"]}, "/x", True),
        ({"methods": ["POST"]}, "/x", True),
        ({"route": "/items/{item_id}"}, "/items/7", True),
        ({}, "/x", False),
    ],
)
def test_a_route_sees_its_request_where_the_documentation_says_so(
    options: dict[str, Any], called: str, is_seen: bool
) -> None:
    def look(context: cb.Context) -> list[Any]:
        return [context.path, context.client, context.request.method]

    def look_at(item_id: str, context: cb.Context) -> list[Any]:
        return look(context)

    app = cb.function(**{"route": "/x", **options})(look_at if called == "/items/7" else look)
    with cb.test_client(app) as local:
        seen = local.client().call(f"POST {called}" if is_seen else called)
        assert seen == [called if is_seen else None, "127.0.0.1" if is_seen else None, "POST"]
    texts = (APP.parents[1] / "README.md").read_text(), Path(_context.__file__).read_text()
    assert [" ".join(text.split()).count(_SEEN) for text in texts] == [1, 2]


def test_code_is_told_which_of_several_methods_has_called_it(node: Served) -> None:
    for method in ("DELETE", "PATCH"):
        assert httpx.request(method, f"{node.http}/by-method").json() == method
        with cb.Client(node.http) as client:
            assert client.call(f"{method} /by-method") == method
    assert httpx.post(f"{node.http}/v1/call/PATCH%20/by-method").json() == "PATCH"
    assert httpx.put(f"{node.http}/by-method").json() == "PUT {}"
    with cb.test_client(request_app.by_method) as local:
        assert local.client().call("PATCH /by-method") == "PATCH"
        assert local.call(context=cb.Context(method="DELETE")) == "DELETE"
        with pytest.raises(AttributeError, match=r"request\.method: this call has come by no method"):
            local.call()
    with cb.test_client(request_app.by_put) as local:
        assert local.client().call("PUT /by-method") == "PUT {}"
        # As of a pipeline, whose route has another name.
        assert local.call(context=cb.Context(route="/pipeline", headers={"a": "b"})) == "POST {'a': 'b'}"


def test_a_lone_parameter_has_its_default_where_a_request_has_no_body(node: Served) -> None:
    def ask(path: str, **more: Any) -> Any:
        return httpx.post(node.http + path, **more).json()

    for path in ("/lone", "/v1/call/lone"):
        assert ask(path) == ask(path, content=iter([])) == ask(path, data={}) == 5
    assert ask("/lone", json=None, content=b"null", headers={"content-type": "application/json"}) is None
    assert (ask("/lone", json=3), ask("/v1/call/lone", json={"args": [3]}), ask("/v1/call/lone", json={})) == (3, 3, 5)
    for url in (node.http, node.quic):
        if url.startswith("quic"):
            pytest.importorskip("callboard._native")
        with cb.Client(url) as client:
            assert (client.send("lone"), client.send("lone", 3), client.send("lone", None)) == (5, 3, None)


@pytest.mark.parametrize(
    ("name", "default"), [("named", 3), ("chosen", ["a"]), ("bound", "inf"), ("hidden", None), ("page", 1)]
)
def test_a_default_that_json_cannot_say_is_given_where_the_input_is_null(node: Served, name: str, default: Any) -> None:
    is_file = name == "page"
    alone = httpx.post(f"{node.http}/{name}")
    assert (alone.status_code, alone.text) == (200, "1") if is_file else alone.status_code == 415
    null = {"content-type": "application/json"}
    assert httpx.post(f"{node.http}/{name}", content=b"{}" if is_file else b"null", headers=null).json() == default
    with cb.Client(node.http) as client, cb.test_client(getattr(request_app, name)) as local:
        for each in (client, local.client()):
            assert each.call(f"/{name}") == each.send(name) == default


@pytest.mark.parametrize(
    "headers",
    [
        cb.Request("GET", "/", headers={"X-User": "ada"}).headers,
        cb.Context(headers={"X-User": "ada"}).headers,
        cb.Context(headers={"X-User": "ada"}).request.headers,
    ],
)
def test_headers_of_a_request_are_found_by_their_names_in_any_case(headers: dict[str, str]) -> None:
    assert headers == {"x-user": "ada"}
    assert headers["X-User"] == headers.get("x-USER") == headers.setdefault("X-User", "bob") == "ada"
    assert ("X-USER" in headers, headers.get("X-Key"), headers.pop("X-Key", "none")) == (True, None, "none")
    headers["X-Key"] = "k"
    assert headers.pop("x-KEY") == "k"
    del headers["X-User"]
    assert not headers
    with pytest.raises(KeyError, match="the request has no header 'x-user', or its route does not list it"):
        headers["X-User"]


def test_a_wrong_guess_about_a_request_names_the_right_one() -> None:
    context = cb.Context(headers={"x-user": "ada"}, query={"page": "2"}, path="/a", method="GET", client="10.0.0.7")
    request = context.request
    assert (request.headers["X-User"], request.headers.get("X-USER"), "X-User" in request.headers) == ("ada",) * 2 + (
        True,
    )
    with pytest.raises(KeyError, match=r"no header 'x-key', or its route does not list it: .*headers=\['x-key'\]"):
        request.headers["X-Key"]
    for name, cure in [
        ("url", "did you mean 'path'"),
        ("query_params", "did you mean 'query'"),
        ("cookie", "did you mean 'cookies'"),
        ("json", "the body is the input"),
        ("state", "context.tags"),
        ("user", "context.caller"),
        ("path_params", "a parameter of the code"),
    ]:
        with pytest.raises(AttributeError, match=f"the request has no '{name}'.*{cure}"):
            getattr(request, name)
    for name, cure in [
        ("user", "caller"),
        ("cookies", "request.cookies"),
        ("is_disconnected", "cancelled"),
        ("add_task", "after"),
        ("header", "headers"),
    ]:
        with pytest.raises(AttributeError, match=f"the context has no '{name}': did you mean '{cure}'"):
            getattr(context, name)
    assert not hasattr(context, "something_else")


@pytest.mark.parametrize(
    ("cookie", "theme"),
    [('theme="dark"', "dark"), ("a=1; theme = dark ;theme=late", "dark"), ("theme", ""), ("; =; theme=a=b", "a=b")],
)
def test_a_cookie_has_one_value_by_every_way(node: Served, cookie: str, theme: str) -> None:
    headers = {"cookie": cookie, "content-type": "application/json"}
    assert httpx.post(f"{node.http}/themes", headers=headers, content=b"null").json() == [theme, theme]
    with cb.test_client(request_app.themes) as local:
        assert local.client().call("/themes", headers={"cookie": cookie}) == [theme, theme]


@pytest.mark.parametrize(
    ("route", "form", "expected"),
    [
        (
            "sign_up",
            {"name": "Ada Lovelace", "age": "36", "news": "on", "tags": ["a", "b"]},
            ["Ada Lovelace", 36, True, ["a", "b"]],
        ),
        # As a page sends what nobody has filled in.
        ("sign_up", {"name": "", "age": "", "tags": "a"}, ["", None, False, ["a"]]),
        ("subscribe", {"mail": "a+b@c.example"}, "a+b@c.example"),
        ("shout", {"texts": "ä&b"}, "Ä&B"),
    ],
)
def test_a_form_of_a_page_has_the_arguments(node: Served, route: str, form: dict[str, Any], expected: Any) -> None:
    assert httpx.post(f"{node.http}/{route}", data=form).json() == expected
    assert httpx.post(f"{node.http}/v1/call/{route}", data=form).json() == expected


def test_an_argument_by_form_is_a_field_by_every_way(node: Served) -> None:
    assert httpx.post(f"{node.http}/subscribe", json={"mail": "a@b"}).json() == "a@b"
    with cb.Client(node.http) as client:
        assert client.call("/subscribe", {"mail": "a@b"}) == client.send("subscribe", "a@b") == "a@b"
    with cb.test_client(request_app.subscribe) as local:
        assert local.call({"mail": "a@b"}) == "a@b"
        here = local.client()
        sent = [
            here.send("subscribe", "a@b"),
            here.send("subscribe", mail="a@b"),
            here.send("subscribe", {"mail": "a@b"}),
        ]
        assert sent == ["a@b"] * 3
        for wrong in ({"mail": "a"}, "a@b", {}):
            with pytest.raises(cb.InvalidInput):
                local.call(wrong)
    refused = httpx.post(f"{node.http}/subscribe", data={"mail": "a"}).json()
    assert (refused["status"], refused["details"]["fields"][0]["path"]) == (422, "$.mail")


def test_a_get_has_no_form() -> None:
    def f(x: Annotated[str, cb.Form()]) -> None: ...

    with pytest.raises(TargetError, match="f: the parameter `x`: a GET has no form: it is a query parameter without"):
        routes_of(cb.function(route="/f", methods=["GET"])(f), "f")


def test_a_test_gives_the_parts_of_a_request_by_the_context() -> None:
    with cb.test_client(request_app.Greet) as local:
        context = cb.Context(headers={"x-user": "ada"}, query={"limit": "7"})
        assert local.call("a", context=context) == ["a", "ada", None, 7, [], "light"]
        found = local.batch(["a", "b"], method="many")
        assert [type(each) for each in found] == [cb.InvalidInput, cb.InvalidInput]


@pytest.mark.parametrize(
    ("hint", "default", "message"),
    [
        (Annotated[dict[str, int], cb.Header()], ..., "a header is a text: `dict.*` cannot be read from it"),
        (Annotated[list[list[int]], cb.Query()], ..., "a query parameter is a text"),
        (Annotated[list[str], cb.Cookie()], ..., "a cookie has one value"),
        (Annotated[str, cb.Header("x user")], ..., "headers: 'x user' is not the name of a header"),
        (Annotated[str, cb.Cookie("a;b")], ..., "'a;b' is not the name of a cookie"),
        (str, cb.Header("x-user"), r"write `x: Annotated\[str, cb.Header"),
        (Annotated[list[str] | None, cb.Cookie()], None, "a cookie has one value"),
        (list[Annotated[str, cb.Query()]], ..., "write `x: Annotated"),
        (str, cb.Form(), r"write `x: Annotated\[str, cb.Form"),
    ],
)
def test_an_argument_that_no_request_has_is_refused_with_its_cure(hint: Any, default: Any, message: str) -> None:
    def f(x: Any) -> None: ...

    f.__annotations__["x"] = hint
    f.__defaults__ = None if default is ... else (default,)
    with pytest.raises(TargetError, match=f"f: the parameter `x`: {message}"):
        routes_of(f, "f")


def test_a_batched_argument_is_a_list_and_an_example_needs_no_request() -> None:
    @cb.batched
    def one(names: list[str], user: Annotated[str, cb.Header()]) -> list[str]: ...

    with pytest.raises(TargetError, match="must be a list, such as"):
        routes_of(one, "one")

    @cb.function(examples=["a"])
    def needs(name: str, user: Annotated[str, cb.Header()]) -> str: ...

    (route,) = routes_of(needs, "needs")
    with pytest.raises(TargetError, match=r"an example has no `user`.*: give the argument a default"):
        route.describe()


def test_the_options_of_a_call_have_parts_of_a_request() -> None:
    client = cb.Client("http://127.0.0.1:9")
    for wrong in ({"headers": {"a b": "x"}}, {"headers": {"x": "é"}}, {"headers": {"Host": "x"}}):
        with pytest.raises(ValueError, match="headers"):
            client.call("/a", **wrong)  # type: ignore[arg-type]
    for query in ([("a", "b")], {"a": None}, {1: "a"}):
        with pytest.raises(TypeError, match="query"):
            client.call("/a", query=query)  # type: ignore[arg-type]


# ---- Paths and methods -----------------------------------------------------------------------------------------------


def test_a_client_calls_a_route_by_its_path_whatever_its_methods(items: cb.Client) -> None:
    assert items.call("/items/7") == [7, 10, [], ""]
    assert items.call("/items/7", query={"limit": 3, "tags": "a,b"}, headers=USER) == [7, 3, ["a", "b"], "ada"]
    assert items.call("/items/latest") == "latest"
    assert items.call("/ids") is None
    assert items.call("/ids", query={"ids": "1,2"}) == [1, 2]
    assert items.call("/names/a%2Fb/of/c%20d%C3%A9", 5) == [5, "a/b", "c dé"]
    assert list(items.stream("/names/a/of/b", [1, 2])) == [[1, "a", "b"], [2, "a", "b"]]
    assert list(items.replies("/words/abc/letters")) == ["a", "b", "c"]
    with pytest.raises(cb.CallError) as raised:
        items.call("/items/x")
    assert (raised.value.status_code, raised.value.details["fields"]) == (
        422,
        [{"path": "path.item_id", "message": "Expected `int`, got another text"}],
    )
    for other in ("/items", "/items/7/8", "/names//of/c"):
        with pytest.raises(cb.CallError) as raised:
            items.call(other)
        assert raised.value.kind == "not_found", other


def test_methods_call_a_route_as_it_declares(node: Served) -> None:
    def ask(method: str, path: str, **more: Any) -> httpx.Response:
        return httpx.request(method, node.http + path, **more)

    assert ask("GET", "/items/7?limit=3&tags=a,b", headers=USER).json() == [7, 3, ["a", "b"], "ada"]
    assert ask("GET", "/items/7", headers={"content-type": "application/json"}).json() == [7, 10, [], ""]
    assert ask("HEAD", "/items/7").status_code == 200
    assert ask("DELETE", "/items/latest").json() == ask("GET", "/items/latest").json() == "latest"
    assert ask("POST", "/names/a%2fb/of/%C3%A9", json=5).json() == [5, "a/b", "é"]
    refused = ask("POST", "/names/a/of/%E9", json=5)
    assert (refused.status_code, "`group` is no text in UTF-8" in refused.text) == (422, True)
    assert ask("GET", "/words/ab/letters", headers={"accept": "application/x-ndjson"}).text.split() == ['"a"', '"b"']
    wanted = {"args": [], "kwargs": {}}
    assert ask("POST", "/v1/call/items/7", json=wanted).json() == [7, 10, [], ""]
    for method, path, allowed in [
        ("POST", "/items/7", "GET, HEAD"),
        ("POST", "/items/latest", "GET, DELETE, HEAD"),
        ("PUT", "/items/latest", "GET, DELETE, HEAD"),
        ("GET", "/names/a/of/b", "POST"),
        ("GET", "/greet", "POST"),
        ("GET", "/v1/call/items/7", "POST"),
    ]:
        refused = ask(method, path)
        assert (refused.status_code, refused.headers["allow"]) == (405, allowed), (method, path)
    assert ask("GET", "/items/0").json()["details"]["fields"][0]["path"] == "path.item_id"


def test_a_client_names_the_method_of_a_route_that_shares_its_path(shelf: cb.Client) -> None:
    assert shelf.call("GET /shelf", query={"limit": 3}) == ["all", 3]
    assert shelf.call("/shelf", "tea") == shelf.call("POST /shelf", "tea") == ["add", "tea"]
    assert shelf.call("/shelf/7") == shelf.call("GET /shelf/7") == ["one", 7]
    assert shelf.call("PUT /shelf/7") == shelf.call("DELETE /shelf/7") == ["drop", 7, "DELETE /shelf/{place}"]
    assert shelf.send("GET /shelf") == ["all", 10]
    assert shelf.send("DELETE /shelf/7") == ["drop", 7, "DELETE /shelf/{place}"]
    assert list(shelf.stream("GET /shelf/7", [None, None])) == [["one", 7], ["one", 7]]
    for other in ("POST", "PATCH"):
        with pytest.raises(cb.CallError) as raised:
            shelf.call(f"{other} /shelf/7")
        refused = raised.value
        assert refused.status_code in (404, 405), other
        if refused.status_code == 405:
            words = f"method {other} is not allowed here; use "
            assert refused.message.startswith(words), refused.message
            assert sorted(refused.message.removeprefix(words).split(", ")) == ["DELETE", "GET", "HEAD", "PUT"]
            assert (refused.kind, refused.type) == ("invalid_input", "method_not_allowed")
    with pytest.raises(ValueError, match="write a path"):
        shelf.call("get /shelf")


def test_a_service_calls_each_route_of_a_shared_path(reader: cb.Client) -> None:
    assert reader.call("/reader", "a") == [["all", 10], ["add", "a"], ["sort", "a"]]


def test_the_methods_of_a_path_are_functions_of_their_own(node: Served) -> None:
    def ask(method: str, path: str, **more: Any) -> httpx.Response:
        return httpx.request(method, node.http + path, **more)

    assert ask("GET", "/shelf?limit=3").json() == ["all", 3]
    assert ask("POST", "/shelf", json="tea").json() == ["add", "tea"]
    assert ask("PATCH", "/shelf", json="name").json() == ["sort", "name"]
    assert ask("GET", "/shelf/7").json() == ["one", 7]
    assert ask("DELETE", "/shelf/7").json() == ["drop", 7, "DELETE /shelf/{place}"]
    assert (ask("HEAD", "/shelf").status_code, ask("HEAD", "/shelf/7").status_code) == (200, 200)
    refused = ask("DELETE", "/shelf")
    assert (refused.status_code, sorted(refused.headers["allow"].split(", "))) == (
        405,
        ["GET", "HEAD", "PATCH", "POST"],
    )
    paths = ask("GET", "/openapi.json").json()["paths"]
    assert (sorted(paths["/shelf"]), sorted(paths["/shelf/{place}"])) == (
        ["get", "patch", "post"],
        ["delete", "get", "put"],
    )


def test_a_session_over_http_is_the_one_over_quic(node: Served) -> None:
    pytest.importorskip("callboard._native")
    with cb.Client(node.http) as http, cb.Client(node.quic) as quic:
        for session in ("zoë 1", "b"):
            found = {client.call("/session", session=session) for client in (http, quic)}
            assert len(found) == 1 and None not in found
        assert http.call("/session") is None
    told = httpx.post(f"{node.http}/session", headers={"x-callboard-session": "b"}).json()
    assert found == {told}


def test_an_optional_list_has_no_default_that_its_schema_refuses() -> None:
    @cb.function
    def one(text: str, tags: Annotated[list[str] | None, cb.Query()] = None, n: Annotated[int, cb.Query()] = 3) -> str:
        return text

    (route,) = routes_of(one, "one")
    tags, n = (argument.describe() for argument in route.signature.request)
    assert (tags["required"], "default" in tags["schema"], n["schema"]["default"]) == (False, False, 3)


def test_openapi_has_the_methods_and_the_parameters_of_a_path(node: Served) -> None:
    paths = httpx.get(f"{node.http}/openapi.json").json()["paths"]
    assert list(paths["/items/{item_id}"]) == ["get"] and list(paths["/items/latest"]) == ["get", "delete"]
    operation = paths["/items/{item_id}"]["get"]
    assert "requestBody" not in operation and operation["operationId"] == "get_items__item_id_"
    own = [parameter for parameter in operation["parameters"] if "name" in parameter]
    assert [(each["in"], each["name"], each["required"]) for each in own] == [
        ("path", "item_id", True),
        ("query", "limit", False),
        ("query", "tags", False),
        ("header", "x-user", False),
    ]
    assert own[0]["schema"] == {"type": "integer", "minimum": 1}


def test_paths_and_methods_that_cannot_be_are_refused_with_their_cure() -> None:
    for path in ("/a/{x", "/a/{x}b", "/a/{2}", "/{x}/{x}", "/a/{}"):
        with pytest.raises(ValueError, match="a parameter is a whole segment, each of another name"):
            cb.function(route=path)(request_app.Greet.predict)
    with pytest.raises(ValueError, match="there are GET, POST"):
        cb.function(route="/a", methods=["FETCH"])(request_app.Greet.predict)
    with pytest.raises(TypeError, match="must be a list"):
        cb.function(methods="GET")(request_app.Greet.predict)  # type: ignore[call-overload]

    @cb.function(route="/a/{x}/{y}")
    def lacks(x: int) -> int: ...

    with pytest.raises(TargetError, match=r"the path /a/\{x\}/\{y\} has `y`, and no parameter is called so"):
        routes_of(lacks, "lacks")

    @cb.function(methods=["GET"])
    def body(x: dict[str, int]) -> int: ...

    with pytest.raises(TargetError, match="body: the parameter `x`: a query parameter is a text"):
        routes_of(body, "body")


def test_two_routes_that_take_the_same_paths_are_an_error_at_the_start(tmp_path: Path) -> None:
    if PROGRAM is None:
        pytest.skip("needs the program `callboard`")
    code = "import callboard as cb\n\n"
    for name in ("a", "b"):
        code += f"@cb.function(route='/items/{{{name}}}')\ndef of_{name}({name}: str) -> str:\n    return {name}\n\n"
    (tmp_path / "app.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "VIRTUAL_ENV": sys.prefix}
    command = [PROGRAM, "serve", "app.py", "--http", "127.0.0.1:0"]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert "the routes `/items/{a}` and `/items/{b}` take the same paths" in ended.stdout + ended.stderr
