"""The clients of the Python package against a real node: `client.py CALLBOARD APP PACKAGE`. Prints each part that passed."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import io
import math
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import typing
import uuid
from pathlib import Path

CALLBOARD, APP, PACKAGE = sys.argv[1:]
sys.path.insert(0, PACKAGE)

import ml_dtypes
import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pydantic
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal, assert_series_equal
from soak import mixed_calls

import callboard as cb
from callboard import client as errors

LIMIT = 60
SOAK_SECONDS = 30
HERE = Path(APP).parent


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Server:
    """A node of its own, and its clients' URL."""

    def __init__(self, *flags, port=None, scheme="http"):
        self.port = port or free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        command = [CALLBOARD, "serve", APP, "--http", f"127.0.0.1:{self.port}", "--admin", "off", "--log", "error", *flags]
        environment = {**os.environ, "PYTHONPATH": PACKAGE, "VIRTUAL_ENV": str(Path(sys.executable).parents[1])}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT)


def refused(error, call):
    try:
        found = call()
    except error as raised:
        return raised
    raise AssertionError(f"{found!r} instead of {error.__name__}")


def until(path):
    start = time.monotonic()
    while not (HERE / path).exists():
        assert time.monotonic() - start < LIMIT, path
        time.sleep(0.005)


# ---- Values ----------------------------------------------------------------------------------------------------------

DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()


def same(one, other):
    """Equal in value and in type, at every place."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, float):
        return math.isnan(one) and math.isnan(other) or (one, math.copysign(1, one)) == (other, math.copysign(1, other))
    return one == other


@st.composite
def arrays(draw):
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3))) if draw(st.booleans()) else (draw(st.integers(0, 900)),)
    seed = np.random.default_rng(draw(st.integers(0, 999)))
    array = seed.integers(0, 2 if dtype == np.bool_ else 100, shape).astype(dtype)
    return np.asfortranarray(array) if draw(st.booleans()) else array


SCALARS = st.builds(lambda dtype: np.dtype(dtype).type(1), st.sampled_from(DTYPES))
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary(max_size=2000),
    arrays(), SCALARS,
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
    ),
    max_leaves=12,
)


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: list[float]


class Label(msgspec.Struct):
    name: str
    score: float = 0.5


class Model(pydantic.BaseModel):
    a: int
    when: dt.datetime


class Scores(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    values: np.ndarray
    is_good: bool = pydantic.Field(alias="isGood")


class Row(typing.TypedDict):
    a: int


NOW = dt.datetime(2026, 5, 6, 7, 8, 9, 10, tzinfo=dt.timezone.utc)
PANDAS = pd.DataFrame({
    "i": [1, 2, 3],
    "i8": np.array([1, 2, 3], np.int8),
    "f": [1.5, np.nan, 2],
    "text": ["a", None, "c"],
    "category": pd.Categorical(["x", "y", "x"]),
    "ordered": pd.Categorical(["x", "y", "x"], categories=["y", "x", "z"], ordered=True),
    "when": pd.date_range("2020-01-01", periods=3),
    "zoned": pd.date_range("2020-01-01", periods=3, tz="Europe/Berlin"),
    "took": pd.to_timedelta([1, 2, 3], unit="s"),
    "nullable": pd.array([1, None, 3], dtype="Int64"),
    "nullable_bool": pd.array([True, None, False], dtype="boolean"),
    "nullable_float": pd.array([1.0, None, 2], dtype="Float32"),
    "decimal": [decimal.Decimal("1.10"), decimal.Decimal("2.20"), None],
    "list": [[1, 2], [3], []],
    "struct": [{"a": 1}, {"a": 2}, {"a": 3}],
})  # fmt: skip
POLARS = pl.DataFrame({
    "i": [1, 2, None],
    "f": [1.5, None, 2.0],
    "text": ["a", None, "c"],
    "when": [dt.datetime(2020, 1, 1)] * 3,
    "decimal": [decimal.Decimal("1.10")] * 3,
    "list": [[1, 2], [3], None],
    "struct": [{"a": 1, "b": "x"}] * 3,
    "array": pl.Series([[1, 2]] * 3, dtype=pl.Array(pl.Int32, 2)),
}).with_columns(
    pl.col("text").cast(pl.Categorical).alias("category"),
    pl.col("text").cast(pl.Enum(["a", "c"])).alias("enum"),
    pl.col("when").dt.replace_time_zone("Europe/Berlin").alias("zoned"),
    pl.col("when").dt.date().alias("date"),
    pl.col("when").dt.time().alias("time"),
    (pl.col("when") - pl.col("when")).alias("took"),
    pl.col("i").cast(pl.UInt8).alias("u8"),
    pl.lit(b"ab").alias("bytes"),
    pl.lit(None).alias("null"),
)  # fmt: skip


def values(client):
    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(VALUES)
    def any_value(value):
        assert same(client.call("/echo", value), value)

    any_value()
    for hint, value in [
        (Colour, Colour.RED), (Point, Point(1, [2.0])), (Label, Label("a")), (Model, Model(a=1, when=NOW)), (Row, {"a": 1}),
        (dt.datetime, NOW), (dt.date, NOW.date()), (dt.timedelta, dt.timedelta(1, 2, 3)), (uuid.UUID, uuid.UUID(int=5)),
        (decimal.Decimal, decimal.Decimal("1.10")), (list[Label], [Label("b"), Label("c", 1.0)]),
    ]:  # fmt: skip
        found = client.call("/echo", value, returns=hint)
        assert found == value and type(found) is type(value), (hint, found)
    # A set is sent as a list, which the hint makes a set again.
    assert client.call("/echo", [1, 2], returns=set[int]) == {1, 2}
    assert client.call("/echo", io.BytesIO(b"abc")) == b"abc"
    assert client.call("/echo", io.BytesIO(b"abc"), returns=io.BytesIO).getvalue() == b"abc"
    model = Scores(values=np.ones((2, 0), np.float32), isGood=True)
    found = client.call("/echo", model, returns=Scores)
    assert same(found.values, model.values) and found.is_good
    assert list(client.call("/echo", model)) == ["values", "isGood"]
    assert client.call("/echo", np.ones(3, ml_dtypes.bfloat16)).dtype == ml_dtypes.bfloat16
    texts = np.array([["a", "long " * 500], ["", "ü"]])
    assert np.array_equal(client.call("/echo", texts), texts)
    table = pa.table({"a": [1, None], "b": ["x", "y"]})
    assert client.call("/echo", table).equals(table)
    for frame in (PANDAS, PANDAS.iloc[:0], pd.concat([PANDAS] * 50, ignore_index=True)):
        pd.testing.assert_frame_equal(client.call("/echo", frame, returns=pd.DataFrame), frame)
    for name in PANDAS:
        pd.testing.assert_series_equal(client.call("/echo", PANDAS[name], returns=pd.Series), PANDAS[name])
    pd.testing.assert_series_equal(client.call("/echo", pd.Series([1]), returns=pd.Series), pd.Series([1]))
    for frame in (POLARS, POLARS.head(0)):
        assert_frame_equal(client.call("/echo", frame, returns=pl.DataFrame), frame)
    for name in POLARS.columns:
        assert_series_equal(client.call("/echo", POLARS[name], returns=pl.Series), POLARS[name])
    assert_series_equal(client.call("/echo", pl.Series([1, None]), returns=pl.Series), pl.Series([1, None]))
    arrow = pa.array([[{"a": decimal.Decimal("1.10")}], None])
    labels = pd.DataFrame({0: [1, 2], 1: pd.Series(pd.arrays.ArrowExtensionArray(arrow))})
    pd.testing.assert_frame_equal(client.call("/echo", labels, returns=pd.DataFrame), labels)
    nested = client.call("/echo", {"a": (POLARS, [1])}, returns=dict[str, tuple[pl.DataFrame, list[int]]])
    assert_frame_equal(nested["a"][0], POLARS)
    for value, words in [
        ({"a": [1, object()]}, "`object` cannot be sent at $.a[1]"),
        (np.array([object()]), "dtype `object`"),
        (np.array(["2020"], "M8[D]"), "dtype `datetime64[D]`"),
        ([1, 2**64], "an integer beyond 64 bits at $[1]"),
        ({"a": pl.Series("o", [object()], dtype=pl.Object)}, "column `o` has Python objects at $.a"),
    ]:
        assert words in str(refused(TypeError, lambda value=value: client.call("/echo", value)))


# ---- Calls -----------------------------------------------------------------------------------------------------------


def functions(client):
    assert [client.send("add", 1), client.send("add", 1, 2), client.send("add", 1, b=5), client.send("add", a=4)] == [
        2, 3, 6, 5,
    ]  # fmt: skip
    assert client.send("echo", {"any": 1}) == {"any": 1} == client.send("/echo", value={"any": 1})
    assert client.with_options(returns=int).send("add", b=1, a=2) == 3
    for words, call in [
        ("got 3 positional arguments", lambda: client.send("add", 1, 2, 3)),
        ("`a` is given twice", lambda: client.send("add", 1, a=2)),
        ("no argument `c`", lambda: client.send("add", 1, c=2)),
        ("`a`", lambda: client.send("add", b=2)),
    ]:
        assert words in str(refused(errors.InvalidInputError, call)), words


def failures(client):
    error = refused(errors.FailedError, lambda: client.call("/fail", "no", request_id="mine"))
    assert (error.status_code, error.type, error.stage, error.request_id) == (500, "ValueError", "fail", "mine")
    assert "in fail" in error.remote_traceback and error.was_started
    error = refused(errors.InvalidInputError, lambda: client.call("/add", {"a": "x"}))
    assert error.status_code == 422 and error.details["fields"][0]["path"] == "$.a"
    assert not refused(errors.NotFoundError, lambda: client.call("/nothing")).was_started
    error = refused(errors.InvalidInputError, lambda: client.call("/count", 1))
    assert (error.status_code, error.message) == (406, "this route answers with a stream: use `replies`")
    # 2 GiB of zeros, which take no memory here: the node refuses them by their announcement.
    error = refused(errors.InvalidInputError, lambda: client.call("/echo", np.zeros(2**31, np.uint8), timeout=LIMIT))
    assert error.status_code == 413 and "67108864" in str(error), error
    (error,) = client.stream("/echo", [np.zeros(2**31, np.uint8)])
    assert isinstance(error, errors.InvalidInputError) and error.status_code == 413, error


def streams(client):
    """The stage has one place in its queue: calls wait for room."""
    results = list(client.stream("/add", ({"a": number} for number in range(300)), returns=int, look_ahead=32))
    assert results == list(range(1, 301))
    results = list(client.stream("/add", [{"a": 1}, {"a": "x"}, object(), {"a": 2}]))
    assert [type(each).__name__ for each in results] == ["int", "InvalidInputError", "InvalidInputError", "int"]
    assert list(client.replies("/count", 1000)) == list(range(1000))
    replies = client.replies("/count", 10**9, returns=int)
    assert [next(replies), next(replies)] == [0, 1]
    replies.close()
    assert list(client.replies("/count", 3)) == [0, 1, 2], "the one replica is free again"
    assert list(client.replies("/add", {"a": 1})) == [2]


def cancellation(client, url):
    error = refused(errors.DeadlineExceededError, lambda: client.call("/wait", "late", timeout=0.5))
    assert error.was_started
    until("late.cancelled")
    stream = client.stream("/wait", ["one", "two", "three"], look_ahead=2)

    def read():
        with contextlib.suppress(RuntimeError):
            list(stream)

    threading.Thread(target=read, daemon=True).start()
    until("one.begun")
    until("two.begun")
    client.close()
    until("one.cancelled")
    until("two.cancelled")

    async def main():
        async with cb.AsyncClient(url) as asynchronous:
            call = asyncio.ensure_future(asynchronous.call("/wait", "task"))
            await asyncio.to_thread(until, "task.begun")
            call.cancel()
            await asyncio.wait([call])
            await asyncio.to_thread(until, "task.cancelled")
            async with contextlib.aclosing(asynchronous.stream("/wait", ["left"], timeout=LIMIT)) as results:
                pulling = asyncio.ensure_future(anext(results))
                await asyncio.to_thread(until, "left.begun")
                pulling.cancel()
                await asyncio.wait([pulling])
            await asyncio.to_thread(until, "left.cancelled")
            assert await asynchronous.send("add", 1) == 2
            assert [each async for each in asynchronous.replies("/count", 3)] == [0, 1, 2]
            inputs = ({"a": number} for number in range(100))
            assert [each async for each in asynchronous.stream("/add", inputs)] == list(range(1, 101))

    asyncio.run(main())
    assert not (HERE / "three.begun").exists()
    asyncio.run(phases(url))


async def phases(url):
    """The worker knows of a call that was cancelled while it waited, ran or streamed; a queued one never runs."""
    async with cb.AsyncClient(url, attempts=1) as client:
        running = asyncio.ensure_future(client.call("/wait-alone", "running"))
        await asyncio.to_thread(until, "running.begun")
        queued = asyncio.ensure_future(client.call("/wait-alone", "queued"))
        await asyncio.wait([queued], timeout=0.5)
        queued.cancel()
        while True:
            # The queue has one place, which is free as soon as the node knows.
            following = asyncio.ensure_future(client.call("/wait-alone", "following"))
            done, _ = await asyncio.wait([following], timeout=1)
            if not done:
                break
            assert isinstance(following.exception(), errors.OverloadedError)
        running.cancel()
        await asyncio.to_thread(until, "running.cancelled")
        await asyncio.to_thread(until, "following.begun")
        assert not (HERE / "queued.begun").exists()
        following.cancel()
        await asyncio.to_thread(until, "following.cancelled")

        replies = client.replies("/wait-in-stream", "replies")
        assert await anext(replies) == "first"
        following = asyncio.ensure_future(anext(replies))
        await asyncio.to_thread(until, "replies.begun")
        following.cancel()
        await asyncio.wait([following])
        await asyncio.to_thread(until, "replies.cancelled")
        async for each in client.replies("/wait-in-stream", "break"):
            assert each == "first"
            await asyncio.to_thread(until, "break.begun")
            break
        await asyncio.to_thread(until, "break.cancelled")
    with cb.Client(url) as client:
        replies = client.replies("/wait-in-stream", "closed")
        assert next(replies) == "first"
        until("closed.begun")
        replies.close()
        until("closed.cancelled")


def soak(url):
    counts = asyncio.run(mixed_calls(url, SOAK_SECONDS, random.randrange(1 << 32), HERE))
    assert counts["add"] and counts["cancelled"] and counts["left"], counts


def ends_and_starts():
    port = free_port()
    client = cb.Client(f"http://127.0.0.1:{port}", start_up_wait=LIMIT)
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(client.send("add", 1)))
    thread.start()
    with Server(port=port) as server:
        thread.join(LIMIT)
        assert outcome == [2]
        server.end()
        error = refused(errors.UnavailableError, lambda: client.send("add", 1))
        assert not error.was_started and "no node answers" in str(error)
    with Server(port=port):
        other = cb.Client(client.url, start_up_wait=LIMIT)
        before = other.call("/pid")
        assert client.call("/pid") == before


def keys_and_tls():
    keys = HERE / "keys.txt"
    keys.write_text("team " + "k" * 32 + "\n")
    keys.chmod(0o600)
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(HERE / "key.pem")
    (HERE / "key.pem").chmod(0o600)
    (HERE / "certificate.pem").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    authority.cert_pem.write_to_path(HERE / "authority.pem")
    tls = ["--tls-certificate", str(HERE / "certificate.pem"), "--tls-key", str(HERE / "key.pem")]
    believes = {"verify": str(HERE / "authority.pem"), "start_up_wait": LIMIT}
    with Server(*tls, "--api-keys", str(keys), scheme="https") as server:
        with cb.Client(server.url, api_key="k" * 32, **believes) as client:
            assert client.send("add", 1) == 2
            assert list(client.stream("/add", [{"a": 1}] * 9)) == [2] * 9
        error = refused(errors.UnauthenticatedError, lambda: cb.Client(server.url, **believes).send("add", 1))
        assert not error.was_started
        error = refused(errors.UnavailableError, lambda: cb.Client(server.url, start_up_wait=LIMIT).send("add", 1))
        assert "its certificate is not believed" in str(error), error
        assert cb.Client(server.url, api_key="k" * 32, verify=False).send("add", 1) == 2
        plain = cb.Client(server.url.replace("https", "http"), start_up_wait=0.5)
        error = refused(cb.CallError, lambda: plain.send("add", 1))
        assert "lost" in str(error) or "TLS" in str(error), error
    with Server() as server:
        cb.Client(server.url, start_up_wait=LIMIT).send("add", 1)
        secure = cb.Client(server.url.replace("http", "https"), start_up_wait=LIMIT)
        error = refused(errors.UnavailableError, lambda: secure.send("add", 1))
        assert "no TLS with this port" in str(error), error


def part(function, *args):
    function(*args)
    print(function.__name__)


with Server("--queue", "1") as running:
    calls = cb.Client(running.url, start_up_wait=LIMIT)
    part(functions, calls)
    part(values, calls)
    part(failures, calls)
    part(streams, calls)
    part(cancellation, calls, running.url)
    part(soak, running.url)
part(ends_and_starts)
part(keys_and_tls)
