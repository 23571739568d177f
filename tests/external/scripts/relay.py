"""Evaluates participants that fail in every way, on a real node: `relay.py callboard`."""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from pages import Reader

from callboard import relay

PARTICIPANT = """
import os
import signal
import time

import callboard as cb


@cb.function
def predict(how: str, rows: int = 2) -> object:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(0)
    if how == "raise":
        raise KeyError("no model")
    if how == "forge":
        raise cb.CallError("not me", kind="internal")
    if how == "refuse":
        raise cb.HTTPException(503, "not me")
    if how == "sleep":
        time.sleep(60)
    if how == "huge":
        return "x" * (100 << 20)
    return {
        "ids": {"y": [1.0, 2.0], "id": [1, 0]}, "nan": [0.0, float("nan")], "text": ["a", "b"], "none": None,
    }.get(how, [0.5] * rows)
"""


class Days(relay.Gateway):
    columns = {"y": float}

    def __init__(self, url: str, how: str, function: str = "predict", **more: object) -> None:
        # A busy machine takes seconds for a huge reply.
        super().__init__(url, start_up_wait="60s", deadline="2s" if how == "sleep" else "30s")
        self.how, self.function, self.more = how, function, more

    def batches(self) -> Iterator[relay.Batch]:
        yield relay.Batch("well", ids=[0, 1])
        if self.how == "broken":
            raise LookupError("no second batch")
        yield relay.Batch(self.how, ids=[0, 1] if self.how == "twice" else [2, 3], **self.more)

    def check(self, batch: relay.Batch, rows: relay.Rows) -> None:
        if batch.args == ("unchecked",):
            raise ZeroDivisionError("in the check")


class Late(relay.Gateway):
    """Its first batch is still at work when something happens to the server."""

    columns = {"y": float}

    def __init__(self, url: str, then: threading.Timer) -> None:
        super().__init__(url, start_up_wait="2s", deadline="2s")
        self.then = then

    def batches(self) -> Iterator[relay.Batch]:
        self.then.start()
        yield relay.Batch("sleep", ids=[0, 1])


def main(callboard: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "participant.py").write_text(PARTICIPANT)
        reader = Reader(callboard, directory)
        try:
            reader.serve("callboard serve participant.py")
            for gateway, expected in cases(f"http://{reader.addresses['localhost:8000']}"):
                result = gateway.run(Path(directory, "out"))
                found = (result.batches, result.blame, result.error)
                assert found == expected, f"{gateway.how}: {result}"
                print(f"{gateway.how}: {result.message}")
            for signal_number, error in ((signal.SIGSTOP, "TooSlow"), (signal.SIGKILL, "ConnectionLost")):
                reader.serve("callboard serve participant.py")
                send = threading.Timer(0.5, os.kill, (reader.server.pid, signal_number))
                result = Late(f"http://{reader.addresses['localhost:8000']}", send).run(Path(directory, "out"))
                assert (result.batches, result.blame, result.error) == (0, "participant", error), result
                print(f"{signal_number.name}: {result.message}")
        finally:
            reader.stop()


def cases(url: str) -> Iterator[tuple[Days, tuple[int, str | None, str | None]]]:
    yield Days(url, "well"), (2, None, None)
    yield Days(url, "kill"), (1, "participant", "Crashed")
    yield Days(url, "exit"), (1, "participant", "Crashed")
    yield Days(url, "raise"), (1, "participant", "Raised")
    yield Days(url, "forge"), (1, "participant", "Raised")
    yield Days(url, "refuse"), (1, "participant", "Raised")
    yield Days(url, "ids"), (1, "participant", "InvalidReply")
    yield Days(url, "nan"), (1, "participant", "InvalidReply")
    yield Days(url, "text"), (1, "participant", "InvalidReply")
    yield Days(url, "none"), (1, "participant", "InvalidReply")
    yield Days(url, "huge"), (1, "participant", "InvalidReply")
    yield Days(url, "well", rows=3), (1, "participant", "InvalidReply")
    yield Days(url, "well", day=1), (1, "participant", "Refused")
    yield Days(url, "well", function="fit"), (0, "participant", "FunctionMissing")
    yield Days(url, "well", rows=object()), (1, "gateway", "GatewayRaised")
    yield Days(url, "broken"), (1, "gateway", "GatewayRaised")
    yield Days(url, "unchecked"), (1, "gateway", "GatewayRaised")
    yield Days(url, "twice"), (2, "gateway", "GatewayError")
    yield Days(url, "sleep"), (1, "participant", "TooSlow")


if __name__ == "__main__":
    main(*sys.argv[1:])
