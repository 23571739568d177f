"""What a service chooses of its answer, and its work after it: in a worker, in this process, and on a node."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")

import httpx
import response_app
from conftest import Served, serving
from node import Node

import callboard as cb
from callboard import _after
from callboard._response import output_of
from callboard._target import TargetError, routes_of
from callboard.client import InvalidInputError
from callboard.client._mistakes import redirected

APP = Path(__file__).with_name("response_app.py")
SECONDS = 20


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


# ---- The answer, on a node -------------------------------------------------------------------------------------------


def test_a_service_chooses_status_headers_and_cookies_of_its_answer(node: Served) -> None:
    created = httpx.post(f"{node.http}/items", json="a")
    assert (created.status_code, created.json(), created.headers["location"]) == (201, "a", "/items/a")
    cookies = created.headers.get_list("set-cookie")
    assert cookies == ["last=a; HttpOnly; Path=/; SameSite=lax", "seen=1; Path=/; SameSite=lax"]
    empty = httpx.get(f"{node.http}/items/none")
    assert (empty.status_code, empty.content, empty.headers["x-model"]) == (204, b"", "m1")
    moved = httpx.get(f"{node.http}/items/old")
    assert (moved.status_code, moved.headers["location"]) == (308, "/items/new")
    page = httpx.get(f"{node.http}/items/b", headers={"accept": "text/html,*/*;q=0.1"})
    assert (page.text, page.headers["content-type"]) == ("<b>b</b>", "text/html; charset=utf-8")
    report = httpx.get(f"{node.http}/report", headers={"accept": "text/csv"})
    assert (report.text, report.headers["content-type"]) == ("a,b\n", "text/csv")
    assert report.headers["content-disposition"] == 'attachment; filename="report.csv"'
    codes = [httpx.post(f"{node.http}/items/batch", json=number).status_code for number in range(4)]
    assert codes == [200, 201, 202, 203]


def test_a_client_reads_the_outputs_of_such_answers(node: Served) -> None:
    with cb.Client(node.http) as client:
        assert client.call("/items", "a") == "a"
        assert client.call("/items/b") == "<b>b</b>"
        assert client.call("/items/batch", 2) == 2
        assert client.call("/items/none") is None
        _check_redirects(client)


def test_a_test_client_tells_of_a_redirect_as_a_node_does() -> None:
    with cb.test_client(response_app.Items) as test:
        _check_redirects(test.client())
        assert test.call(method="item", context=cb.Context(path="/items/old")) is None


def _check_redirects(client: cb.Client) -> None:
    for called, name in (("/items/old", "/items/new"), ("DELETE /items/old", "DELETE /items/new")):
        with pytest.raises(InvalidInputError) as raised:
            client.call(called)
        assert raised.value.message == f"`{called}` redirects to /items/new: call that route: '{name}'"
        assert (raised.value.status_code, raised.value.retryable) == (308, False)


@pytest.mark.parametrize(
    ("status", "location", "cure"),
    [
        (307, "/new?page=2&q=", "call that route: client.call('PUT /new', query={'page': '2', 'q': ''})"),
        (303, "http://node:8000/a/new", "call that route: 'GET /new'"),
        (303, "http://node:9000/a/new", "use that address"),
        (307, "//other/new", "use that address"),
    ],
)
def test_a_redirect_names_the_route_to_call(status: int, location: str, cure: str) -> None:
    found = redirected("PUT /old", status, location, "http://node:8000/a")
    assert (found.kind, found.status, found.message) == (
        "invalid_input",
        status,
        f"`PUT /old` redirects to {location}: {cure}",
    )
    assert redirected("/x", 304, None).message == "`/x` answers with status 304 and no output"


def test_a_status_that_code_chose_is_no_refusal(node: Served, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with cb.Client(node.http) as client:
        assert client.call("/busy", {"path": str(notes), "status": 429}) == "later"
        assert client.call("/busy", {"path": str(notes), "status": 503}) == "later"
        assert client.call("/busy", {"path": str(notes), "status": 404}) == "later"
        assert list(client.replies("/busy/stream", 429)) == ["later"]
        assert list(client.replies("/busy", {"path": str(notes), "status": 429})) == ["later"]
        with pytest.raises(cb.CallError, match="redirects to /other") as moved:
            client.call("/busy", {"path": str(notes), "status": 303})
        assert moved.value.was_started and not moved.value.retryable  # type: ignore[attr-defined]
    # Each call has run once.
    assert notes.read_text() == "busy\n" * 5


def test_the_header_of_a_server_fails_the_call_by_its_name(node: Served) -> None:
    failed = httpx.get(f"{node.http}/items/wrong")
    assert failed.status_code == 500
    message = "ValueError: the header 'Content-Length' is the server's own: an answer cannot choose it"
    assert failed.json()["message"] == message


def test_the_last_stage_of_a_pipeline_wins_and_an_inner_call_has_no_say(node: Served) -> None:
    both = httpx.post(f"{node.http}/steps", json="a")
    assert (both.status_code, both.json(), both.headers["x-first"], both.headers["x-both"]) == (202, "A", "1", "2")
    outer = httpx.post(f"{node.http}/outer", json="a")
    assert (outer.status_code, "x-first" in outer.headers) == (200, False)


@pytest.mark.parametrize(
    ("accept", "body"),
    [
        ("text/plain", "a\nb"),
        ("application/x-ndjson", '"a"\n"\\n"\n"b"\n'),
        ("*/*", 'id: 0\ndata: "a"\n\nid: 1\ndata: "\\n"\n\nid: 2\ndata: "b"\n\nevent: end\ndata: {"items":3}\n\n'),
    ],
)
def test_a_stream_of_texts_is_events_lines_or_plain_text(node: Served, accept: str, body: str) -> None:
    answer = httpx.post(f"{node.http}/chat", json="a\nb", headers={"accept": accept})
    assert (answer.text, answer.headers["x-model"]) == (body, "m1")
    counted = httpx.post(f"{node.http}/count", json=0)
    assert (counted.status_code, counted.text) == (203, 'event: end\ndata: {"items":0}\n\n')


def test_a_choice_after_the_first_output_is_an_error_of_the_stream(node: Served) -> None:
    answer = httpx.post(f"{node.http}/chat", json="a!b", headers={"accept": "application/x-ndjson"})
    assert (answer.status_code, answer.text.startswith('"a"\n{"error"')) == (200, True)
    assert "the answer has begun: its status and headers are chosen before the first output" in answer.text
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{node.http}/chat", json="a!b", headers={"accept": "text/plain"})


def test_a_route_declares_the_status_and_media_type_of_its_answers(node: Served) -> None:
    for accept in ("*/*", "text/csv"):
        table = httpx.post(f"{node.http}/table", json=2, headers={"accept": accept})
        assert (table.status_code, table.text) == (201, "a\na\n")
        assert table.headers["content-type"] == "text/csv; charset=utf-8"
    other = httpx.post(f"{node.http}/table", json=0)
    assert (other.status_code, other.headers["content-type"]) == (404, "text/plain; charset=utf-8")
    assert httpx.post(f"{node.http}/table", json=2, headers={"accept": "text/html"}).status_code == 406
    # What its code chooses is known when it has run: the hint of its result says that it may be any.
    page = httpx.get(f"{node.http}/page", headers={"accept": "text/html"})
    assert (page.text, page.headers["content-type"]) == ("<p>", "text/html; charset=utf-8")
    assert httpx.get(f"{node.http}/page", headers={"accept": "text/csv"}).status_code == 406
    responses = httpx.get(f"{node.http}/openapi.json").json()["paths"]["/table"]["post"]["responses"]
    assert list(responses) == ["201", "default"]
    assert responses["201"]["description"] == "A table."
    assert responses["201"]["content"] == {"text/csv": {"schema": {"type": "string"}}}


def test_a_batch_chooses_no_more_than_its_frame_holds() -> None:
    with Node("response_app.py:crowded").ready() as node:
        node.batch(list(range(10_000)))
        head, values = node.receive()
        errors = [error for error in head["items"] if error is not None]
        assert len(errors) + len(values) == 10_000 and len(errors) > 5_000
        message = "the output of crowded: no room for its headers in its batch: use a smaller max_batch_size"
        assert errors[0] == {"message": message}
        chosen = [response for response in head["responses"] if response is not None]
        assert len(chosen) == len(values) > 500 and {len(response["headers"]) for response in chosen} == {16}
        assert node.call(1) == [1]
        assert node.stop()[0] == 0


# ---- The answer, in this process -------------------------------------------------------------------------------------


def test_the_test_client_gives_the_answer_of_a_node() -> None:
    with cb.test_client(response_app.Items) as client:
        context = cb.Context()
        assert client.call("a", method="create", context=context) == "a"
        assert (context.response.status_code, context.response.headers["Location"]) == (201, "/items/a")
        assert client.batch([0, 1], method="batch") == [0, 1]
        assert client.call(method="report", context=context) == b"a,b\n"
        assert context.response.media_type == "text/csv"
    with cb.test_client(response_app.table) as client:
        assert (client.call(1, context=context), context.response.status_code) == ("a\n", 201)
        assert (client.call(0, context=context), context.response.status_code) == ("none", 404)
    with cb.test_client(response_app.Chat) as client, pytest.raises(RuntimeError, match="the answer has begun"):
        client.call("a!")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cb.Response(status_code=199), "the status 199 is not an integer from 200 to 599"),
        (lambda: cb.Response(status_code=True), "the status True is not an integer from 200 to 599"),
        (lambda: cb.Response(headers={"Connection": "x"}), "the header 'Connection' is the server's own: an answer"),
        (lambda: cb.Response(headers={"x-a": "a\r\nb: c"}), "has characters that HTTP does not allow"),
        (lambda: cb.Response(headers={"x-a": "\0"}), "has characters that HTTP does not allow"),
        (lambda: cb.Response(headers=[("x-a", "1")] * 17), "the headers of an answer are at most 16"),
        (lambda: cb.Response(headers={"x-a": "b" * 2048}), "with 2048 bytes in all"),
        (lambda: cb.Response().set_cookie("a b"), "the cookie 'a b'"),
        (lambda: cb.Response().set_cookie("a", path="/; Domain=b"), "path='/; Domain=b' has a semicolon"),
        (lambda: cb.Response().set_cookie("a", domain="b\x01"), "the cookie 'a': domain='b\\x01' has a semicolon"),
        (lambda: cb.Response().set_cookie("a", samesite="lax; Secure"), "samesite='lax; Secure' is not one of 'lax'"),
        (lambda: cb.Redirect("/", 200), "the status 200 is not from 300 to 399"),
    ],
)
def test_what_an_answer_cannot_have_is_refused_where_it_is_chosen(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_a_name_of_another_framework_leads_to_the_one_here() -> None:
    with pytest.raises(AttributeError, match="did you mean 'Redirect'"):
        cb.RedirectResponse  # noqa: B018 - it is looked up


def test_the_url_and_the_file_name_of_an_answer_are_encoded() -> None:
    assert cb.Redirect("/ä b?c=1").headers["location"] == "/%C3%A4%20b?c=1"
    named = cb.Response("a", filename="ä.csv").headers
    assert named["content-disposition"] == "attachment; filename*=utf-8''%C3%A4.csv"
    assert named["content-type"] == "text/csv; charset=utf-8"


# ---- The protocol ----------------------------------------------------------------------------------------------------


def test_outcomes_have_what_was_chosen_of_each_answer() -> None:
    with Node("response_app.py:Items.batch") as node:
        node.ready().batch([0, 2, 0])
        head, values = node.receive()
        assert (head["responses"], values) == ([None, {"status": 202}], [0, 2, 0])
        node.batch([0], ident=2)
        assert "responses" not in node.receive()[0]


# ---- Work after the answer -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "lines"),
    [
        ("/after", ["sync"]),
        ("/after/coroutine", ["async", "thread"]),
        ("/after/stream", ["stream"]),
        ("/after/batch", ["batch"]),
    ],
)
def test_work_after_an_answer_runs_in_the_replica(node: Served, tmp_path: Path, route: str, lines: list[str]) -> None:
    notes, go = tmp_path / "notes", tmp_path / "notes.go"
    answer = httpx.post(f"{node.http}{route}", json=str(notes), headers={"accept": "*/*"})
    assert answer.status_code == 200
    go.touch()
    until(lambda: notes.exists() and sorted(notes.read_text().split()) == lines)
    if route == "/after":
        until(lambda: 'after_failures_total{stage="after"} 1' in httpx.get(f"{node.http}/metrics").text)


def test_a_node_that_ends_waits_for_work_after_answers(tmp_path: Path) -> None:
    def refuses() -> bool:
        try:
            return not httpx.get(f"{node.http}/livez")
        except httpx.TransportError:
            return True

    notes, go = tmp_path / "notes", tmp_path / "notes.go"
    with serving(APP, tmp_path, "--drain-delay", "0s") as node:
        for route in ("/after", "/after/coroutine"):
            assert httpx.post(f"{node.http}{route}", json=str(notes)).status_code == 200
        node.process.terminate()
        until(refuses)
        go.touch()
        said = "".join(node.lines)
        assert node.process.wait(SECONDS) == 0, said
    assert sorted(notes.read_text().split()) == ["async", "sync", "thread"]
    assert re.search(r"after the answer of \S+: fail failed", said), said
    assert "KeyError: 'after'" in said


@pytest.mark.parametrize("target", ["response_app.py:After", "response_app.py:After.coroutine"])
def test_a_stop_tells_how_much_work_after_answers_it_cuts(tmp_path: Path, target: str) -> None:
    with Node(target) as node:
        node.ready()
        assert isinstance(node.call(str(tmp_path / "notes"))[0], int)
        node.send({"type": "stop", "timeout_ms": 100})
        said = []
        with pytest.raises(EOFError):
            while True:
                said.append(node.receive_any()[0])
        assert node.end()[0] == 0
    cut = [head["message"] for head in said if head.get("level") == "error" and "cut" in head["message"]]
    assert cut == ["1 functions after answers did not end within 0.1 s (stop_timeout) and are cut"]


def test_a_replica_has_room_for_a_thousand_functions_after_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_after, "MAX_PENDING", 2)
    context = cb.Context()
    context.after(print)
    context.after(print)
    with pytest.raises(cb.HTTPException, match="503: after: 2 functions wait in this replica already"):
        context.after(print)
    with pytest.raises(TypeError, match="after: None cannot be called"):
        context.after(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("service", ["Asks", "PlainAsks"])
def test_work_after_an_answer_calls_nothing_as_another_caller(tmp_path: Path, service: str) -> None:
    notes, go, end = (tmp_path / name for name in ("notes", "notes.go", "notes.end.go"))
    refused = "/who cannot be called after the answer: its call is over; call it in `predict`, or by a `Client`\n"
    with Node(f"response_app.py:{service}", max_batches=8) as node:
        node.receive()
        node.batch([str(notes)], items=[{"caller": "alice"}])
        node.outcomes()
        node.batch([str(notes)], ident=2, items=[{"caller": "bob"}])
        go.touch()
        until(notes.exists)
        end.touch()
        # It is no call.
        assert node.receive()[0]["type"] == "outcomes"
    assert notes.read_text() == refused
    with cb.test_client(getattr(response_app, service)) as client:
        client.call(str(notes), context=cb.Context(caller="alice"))
    assert notes.read_text() == 2 * refused


def test_the_calls_of_a_batch_share_the_room_for_functions_after_answers() -> None:
    with Node("response_app.py:Many").ready() as node:
        assert node.call(*[300] * 4) == [300, 300, 300, 100]
        # Each function that has ended leaves its room.
        until(lambda: node.call(1) == [1])


def test_work_for_a_call_that_has_its_answer_is_refused_and_work_that_exits_ends_no_calls() -> None:
    with Node("response_app.py:Late").ready() as node:
        assert node.call("a") == ["first"]
        assert node.call("b") == ["after: the call has its answer: work after it is named before"]
        assert node.stop()[0] == 0
        assert any("leave failed" in record["message"] for record in node.logs)
    with cb.test_client(response_app.Late) as client:
        assert client.call("a") == "first"
        assert client.call("b") == "after: the call has its answer: work after it is named before"


def test_a_replica_that_is_not_well_waits_for_async_work_after_its_answer(tmp_path: Path) -> None:
    with Node("response_app.py:UnwellAfter").ready() as node:
        node.call(str(tmp_path / "notes"))
        assert node.end()[0] == 1
    assert (tmp_path / "notes").read_text() == "done\n"


def test_a_test_client_does_the_work_after_a_stream_that_fails_or_is_left() -> None:
    done: list[str] = []

    @cb.service
    class Words:
        def predict(self, text: str, context: cb.Context) -> Iterator[str]:
            context.after(done.append, text)
            yield text
            raise ValueError(text)

    class Reads:
        words = cb.depends(Words)

        def predict(self, text: str) -> str:
            for word in self.words.predict(text):
                return str(word)
            return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "Words", Words)
        with cb.test_client(Words) as client, pytest.raises(ValueError, match="failed"):
            client.call("failed")
        with cb.test_client(Reads) as client:
            assert client.call("left") == "left"
    assert done == ["failed", "left"]


def test_an_answer_without_a_body_has_no_declared_media_type() -> None:
    context = cb.Context()
    context.response.media_type = "text/html"
    assert output_of(cb.Redirect("/login", 303), context) is None
    assert context.response.headers.pairs() == [("location", "/login")]


def test_a_declaration_that_no_answer_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="the status 99 is not an integer from 200 to 599"):
        cb.function(status_code=99)(routes_of)

    @cb.function(media_type="text/csv")
    def rows() -> Iterator[str]:
        yield "a"

    def create(name: str, response: cb.Response) -> str:
        return name

    with pytest.raises(TargetError, match=r"the answer is `context\.response`, of a parameter"):
        routes_of(create, "app.py:create")
    with pytest.raises(TargetError, match="rows: media_type: a stream has the one that its client accepts"):
        routes_of(rows, "app.py:rows")
