"""The evaluation relay's own wire: their gateway and a participant served here, and our gateway and their participant.

`relay_grpc.py callboard`
"""

import dataclasses
import enum
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pandas as pd
import polars as pl
import pydantic
import relay_peers
from relay_peers import TheirClient, TheirServer, blame

from callboard import relay

TYPES = """
import dataclasses
import enum

import pydantic


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int
    inner: "Point | None" = None


class Outer:
    class Shape(pydantic.BaseModel):
        name: str
"""

PARTICIPANT = """
import io
import os
import time

import numpy as np
import pandas as pd
import polars as pl

import callboard as cb
from callboard import relay

relay.allow_modules("shapes")
seen = []


@cb.function
def mirror(value):
    return value


@cb.function
def kind_of(value):
    return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"


@cb.function
def predict(test: pl.DataFrame, lags: pl.DataFrame | None = None) -> pl.DataFrame | pd.DataFrame:
    seen.append(lags)
    scores = test.select(id=pl.col("id"), score=pl.col("x") * len(seen))
    return scores if lags is None else scores.to_pandas()


@cb.function
def as_hinted(frame: pd.DataFrame, picture: io.BytesIO, numbers: np.ndarray, more: float = 1.0):
    return [type(frame).__module__.partition(".")[0], picture.read(), numbers.sum(), more]


@cb.function
def fail(how):
    if how == "raise":
        raise KeyError("no\\nmodel")
    if how == "exit":
        os._exit(1)
    if how == "refuse":
        raise cb.HTTPException(503, "not me")
    return {1: "a key that is no text"} if how == "keys" else {1, 2}


@cb.function
def slow(seconds):
    time.sleep(seconds)
    return "done"


class Model:
    def fit(self, x):
        return x + 1


@cb.service
class TextModel:
    def setup(self):
        self.count = 0

    def predict(self, x):
        self.count += x
        return self.count

    @cb.route("/text-model/reset")
    def reset(self):
        return "reset"
"""


def start(callboard, directory, *more):
    process = subprocess.Popen(
        [callboard, "serve", "participant.py", "--relay", *more], cwd=directory, stderr=subprocess.PIPE, text=True
    )
    port, lines = None, []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r"http://[^ ]*:(\d+)", line):
            port = int(found[1])
            break
    assert port, "".join(lines)
    threading.Thread(target=process.stderr.read, daemon=True).start()
    return process, port


def same(got, sent):
    if isinstance(sent, pl.DataFrame | pl.Series | pd.DataFrame | pd.Series):
        assert type(got) is type(sent), (type(got), type(sent))
        equal = got.equals(sent) if not isinstance(sent, pl.DataFrame | pl.Series) else got.equals(sent)
        assert equal, (got, sent)
    elif isinstance(sent, np.ndarray):
        assert got.dtype == sent.dtype and (got == sent).all(), (got, sent)
    elif isinstance(sent, io.BytesIO):
        assert got.getvalue() == sent.getvalue()
    else:
        assert type(got) is type(sent) and got == sent, (got, sent)


def values(client):
    exact = [
        "text é", "", True, False, 0, -1, 2**63 - 1, -(2**63), 0.5, None, [], (), {}, [1, "a", (None, 2.0)],
        {"a": [1], "b": {"c": (1,)}}, np.float64(0.1), np.int8(-3), np.bool_(True), np.complex64(1j),
        np.arange(6, dtype=np.int16).reshape(2, 3), np.zeros((0, 3)), np.asfortranarray(np.eye(2, dtype=np.float32)),
        np.array(["a", "bc"]), io.BytesIO(b"\0\x01"), io.BytesIO(bytes(2 << 20)),
        pl.DataFrame({"id": [1, 2], "x": [0.5, None], "name": ["a", "b"]}),
        pl.DataFrame({"x": pl.Series([], dtype=pl.Int32)}), pl.DataFrame({"c": pl.Series(["a", "b"], dtype=pl.Categorical)}),
        pd.DataFrame({"id": [1, 2], "x": [0.5, np.nan], "name": ["a", None]}), pd.Series([1.5, 2.5], name="y"),
        pd.DataFrame({"t": pd.to_datetime(["2026-01-01"]), "k": pd.Categorical(["a"])}), pl.Series("y", [1, None]),
        pl.DataFrame({"x": np.arange(500_000)}),
    ]  # fmt: skip
    for value in exact:
        same(client.send("mirror", value), value)
    assert client.send("mirror", 0.1) == float(np.float32(0.1)), "32 bits, as every sender of a relay"
    # The index of pandas is dropped by either side.
    assert list(client.send("mirror", pd.DataFrame({"x": [1, 2]}, index=[7, 9])).index) == [0, 1]
    for value, kind in [
        (pl.DataFrame({"x": [1]}), "polars.DataFrame"), (pd.DataFrame({"x": [1]}), "pandas.DataFrame"),
        (pl.Series([1]), "polars.Series"), (pd.Series([1]), "pandas.Series"), ((1,), "builtins.tuple"),
        (np.float32(1), "numpy.float32"), (np.ones(1), "numpy.ndarray"),
    ]:  # fmt: skip
        assert client.send("kind_of", value) == kind, (kind, client.send("kind_of", value))
    test = pl.DataFrame({"id": [1, 2], "x": [0.5, 1.5]})
    same(client.send("predict", test), pl.DataFrame({"id": [1, 2], "score": [0.5, 1.5]}))
    same(client.send("predict", test, lags=test), pd.DataFrame({"id": [1, 2], "score": [1.0, 3.0]}))
    hinted = client.send("as_hinted", test, io.BytesIO(b"picture"), np.arange(3))
    assert (hinted[0], hinted[1].getvalue(), *hinted[2:]) == ("pandas", b"picture", 3, 1.0), hinted
    for name in ("TextModel.predict", "text-model"):
        assert client.send(name, 2) > 0
    assert client.send("TextModel.reset") == client.send("reset") == "reset"
    print("values")


def models(client, directory):
    sys.path.insert(0, str(directory))
    import shapes

    relay_peers.MODELS.update({
        enum.Enum: lambda value: ("enum_value", f'"{value.name}"'),
        shapes.Point: lambda value: ("dataclass_value", __import__("json").dumps(dataclasses.asdict(value))),
        pydantic.BaseModel: lambda value: ("pydantic_model_value", value.model_dump_json()),
    })
    for value, expected in [
        (shapes.Color.RED, ("enum_value", "shapes", "Color", "RED")),
        (shapes.Point(1, shapes.Point(2)), ("dataclass_value", "shapes", "Point", {"x": 1, "inner": {"x": 2, "inner": None}})),
        (shapes.Outer.Shape(name="a"), ("pydantic_model_value", "shapes", "Outer.Shape", {"name": "a"})),
    ]:
        assert client.send("mirror", value) == expected, client.send("mirror", value)
        assert client.send("kind_of", value) == f"shapes.{type(value).__name__}"
    Evil = enum.Enum("Evil", ["A"])
    Evil.__module__ = "shapes_evil"
    assert "allow it by" in fails(client, "mirror", Evil.A)[1]
    print("models")


def fails(client, name, *args, **kwargs):
    try:
        client.send(name, *args, **kwargs)
    except grpc.RpcError as error:
        return blame(error, name)
    raise AssertionError(name)


def blamed(client):
    assert fails(client, "fit") == ("missing endpoint", "")
    assert fails(client, "fail", "raise") == ("raised", "KeyError: 'no\\nmodel'")
    assert fails(client, "fail", "refuse") == ("raised", "not me")
    assert fails(client, "fail", "exit")[0] == "raised"
    assert fails(client, "fail", "keys")[0] == "raised"
    assert fails(client, "fail", "set")[0] == "raised"
    assert fails(client, "predict", 1)[0] == "raised"
    assert fails(client, "predict")[0] == "raised"
    assert fails(client, "slow", 30, deadline=0.5) == ("deadline", "")
    assert client.send("mirror", 1) == 1
    print("blame")


def first_call(port):
    """Longer than the usual limit of a node, with pings meanwhile, and no deadline."""
    client = TheirClient("localhost", [port], [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 2_000)])
    assert client.send("slow", 32) == "done"


class Scores(relay.Gateway):
    columns = {"score": float}
    listeners = ("hint",)
    listen = "127.0.0.1:0"
    floats = (0.5, 1.5)

    def __init__(self, port, how="well", **settings):
        settings = {"start_up_wait": "30s", "deadline": "10s", **settings}
        super().__init__(f"localhost:{port}", protocol="grpc", **settings)
        self.how, self.asked = how, 0

    def batches(self):
        for day in (1, 2):
            test = pl.DataFrame({"id": [f"{day}a", f"{day}b"], "x": [0.5, 1.5]})
            yield relay.Batch(test, "well" if day == 1 else self.how, day=day, ids=test["id"])

    def hint(self, number):
        self.asked += number
        return self.asked


def their_participants(directory):
    calls = []

    def predict(test, how, day):
        calls.append((type(test), how, day))
        if how == "raise":
            raise ValueError("no model")
        if how == "sleep":
            time.sleep(3)
        if how == "rows":
            return [0.5]
        if how == "pandas":
            return pd.DataFrame({"id": test["id"].to_list(), "score": [1.0, 2.0]})
        if how == "series":
            return pl.Series([1.0, 2.0])
        return test.select("id", score="x")

    with TheirServer(predict) as server:
        for how, expected in [
            ("well", (True, None, None)),
            ("pandas", (True, None, None)),
            ("series", (True, None, None)),
            ("raise", (False, "participant", "Raised")),
            ("rows", (False, "participant", "InvalidReply")),
        ]:
            result = Scores(server.port, how).run(directory)
            assert (result.succeeded, result.blame, result.error) == expected, result
        assert calls[0] == (pl.DataFrame, "well", 1)
        assert "no model" in Scores(server.port, "raise").run(directory).message
        assert Scores(server.port, "sleep", deadline="1s").run(directory).error == "TooSlow"
        missing = Scores(server.port)
        missing.function = "fit"
        assert missing.run(directory).error == "FunctionMissing"
        big = Scores(server.port, max_reply_bytes=100).run(directory)
        assert big.error == "InvalidReply" and "max_reply_bytes = 100" in big.message, big
    assert Scores(server.port, start_up_wait="1s").run(directory).error == "NeverStarted"
    unknown = relay.RelayClient("nowhere.invalid", start_up_wait=60)
    try:
        unknown.send("predict")
        raise AssertionError("there is no such host")
    except relay_errors() as error:
        assert "not known" in str(error), error
    print("their participants")


def relay_errors():
    from callboard.client import UnavailableError

    return UnavailableError


def late_and_lost(directory):
    """The server comes later, on a port that is not the first; and it ends between two batches."""
    with TheirServer(port=0) as taken:
        port = taken.port
    done = []

    def predict(test, how, day):
        done.append(day)
        return test.select("id", score="x")

    server = TheirServer(predict, port=port + 2)
    timer = threading.Timer(1, server.server.start)
    timer.start()

    class Ending(Scores):
        def check(self, batch, rows):
            if self.how == "end":
                server.server.stop(0).wait()

    gateway = Ending(port, "end")
    result = gateway.run(directory)
    assert (result.batches, result.error) == (1, "ConnectionLost"), result
    assert done == [1]
    print("late and lost")


def listeners(directory):
    """The participant asks the gateway, which has a state."""
    gateway = Scores(0)
    from callboard.relay.listening import Listener

    def predict(test, how, day):
        with relay.RelayClient(f"127.0.0.1:{listener.port}", start_up_wait=10) as client:
            hints = [client.send("hint", day), client.send("hint", day)]
            try:
                client.send("secret")
                raise AssertionError("not a listener")
            except Exception as error:
                assert "No listener for secret was registered" in str(error), error
        return [float(hint) for hint in hints]

    with Listener({"hint": gateway.hint}, "127.0.0.1:0") as listener, TheirServer(predict) as server:
        asking = Scores(server.port)
        result = asking.run(directory)
        assert result.succeeded, result
    assert gateway.asked == 6
    print("listeners")


def ours_to_ours(callboard, directory, port):
    class Ours(Scores):
        function = "predict"

        def batches(self):
            for day in (1, 2):
                test = pl.DataFrame({"id": [day * 2, day * 2 + 1], "x": [0.1, 1.5]})
                yield relay.Batch(test, ids=test["id"])

    result = Ours(port).run(directory)
    assert result.succeeded, result
    with relay.RelayClient(f"localhost:{port}", exact_floats=True) as client:
        assert client.send("mirror", 0.1) == 0.1
        same(client.send("mirror", pd.Series([1, 2], name="y")), pd.Series([1, 2], name="y"))
    print("ours to ours")


def main(callboard):
    with tempfile.TemporaryDirectory() as path:
        directory = Path(path)
        (directory / "participant.py").write_text(PARTICIPANT)
        (directory / "shapes.py").write_text(TYPES)
        (directory / "out").mkdir()
        # The client is there before its server, on the usual ports.
        early = TheirClient("localhost")
        first = []
        waiting = threading.Thread(target=lambda: first.append(early.send("mirror", "first")), daemon=True)
        waiting.start()
        process, port = start(callboard, directory)
        try:
            assert port in relay_peers.PORTS, port
            waiting.join(60)
            assert first == ["first"], first
            print("late start")
            long = threading.Thread(target=first_call, args=[port], daemon=True)
            long.start()
            values(early)
            models(early, directory)
            blamed(early)
            ours_to_ours(callboard, directory / "out", port)
            long.join(60)
            assert not long.is_alive()
            print("first call")
            # It drains: callers are told that nothing was started.
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            gone = TheirClient("localhost", [port])
            gone.stub = early.stub
            assert fails(gone, "mirror", 1) == ("connection failed", "")
            print("drained")
        finally:
            process.kill()
            process.wait()
        their_participants(directory / "out")
        late_and_lost(directory / "out")
        listeners(directory / "out")


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
