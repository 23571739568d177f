"""The evaluation relay: replies, shared files, and who is to blame for a failed call. No server runs here."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from callboard import relay
from callboard._envelope import decode, encode
from callboard.client import Prepared
from callboard.client.errors import KINDS
from callboard.relay.errors import of_call
from callboard.relay.replies import rows_of


def rows(reply: Any, ids: Any = (7, 8), columns: Any = None) -> Any:
    return rows_of(reply, ids, "id", columns or {"y": float})


@pytest.mark.parametrize(
    "reply",
    [
        [1, 2.0],
        (1.0, 2.0),
        np.array([1, 2]),
        np.array([1, 2], np.float32),
        {"y": [1, 2]},
        {"id": [7, 8], "y": np.array([1.0, 2.0])},
    ],
)
def test_a_reply_is_a_list_an_array_or_columns(reply: Any) -> None:
    assert rows(reply) == {"id": [7, 8], "y": [1.0, 2.0]}


def test_one_value_is_one_row() -> None:
    assert rows(np.float64(0.5), ids=["a"]) == {"id": ["a"], "y": [0.5]}
    assert rows("cat", ids=["a"], columns={"y": str}) == {"id": ["a"], "y": ["cat"]}


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_a_reply_may_be_a_data_frame(package: str) -> None:
    frames = pytest.importorskip(package)
    columns = {"id": ["a", "b"], "y": [0.5, 1.5]}
    frame = frames.table(columns) if package == "pyarrow" else frames.DataFrame(columns)
    assert rows(frame, ids=["a", "b"]) == columns
    # The ids of a batch may be a column as well.
    assert rows([0.5, 1.5], ids=frame["id"]) == columns


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (None, "the reply is None"),
        ([1.0], "expected 2 rows, got 1 in 'y'"),
        (1.0, "expected 2 rows, got 1 in 'y'"),
        ("ab", "expected 2 rows, got 1 in 'y'"),
        ({"y": "ab"}, "expected a list, an array or a column, got str"),
        (5j, "expected a list, an array or a column, got complex"),
        ({"z": [1, 2]}, "there is no column 'y'"),
        ({"y": [1, 2], "z": [1, 2]}, "the column 'z' was not asked for"),
        ({"y": [1, 2], "id": [8, 7]}, "2 wrong ids in 'id': row 0: 8 instead of 7; row 1: 7 instead of 8"),
        ({"y": [1, 2], "id": ["7", "8"]}, "wrong ids"),
        ({"y": [1, 2], "id": [7.0, 8.0]}, "wrong ids"),
        ({"y": [1, 2], "id": [7, 8, 9]}, "expected 2 rows, got 3 in 'id'"),
        ([1.0, float("nan")], "1 values of 'y' are no finite float: row 1: nan"),
        ([1.0, float("inf")], "no finite float"),
        ([1.0, 10**400], "no finite float"),
        ([1.0, True], "no finite float: row 1: True"),
        ([1.0, "2"], "no finite float: row 1: '2'"),
        (np.zeros((2, 1)), "an array must have one dimension, and has the shape (2, 1)"),
    ],
)
def test_a_wrong_reply_is_the_fault_of_the_participant(reply: Any, message: str) -> None:
    with pytest.raises(relay.InvalidReply) as raised:
        rows(reply)
    assert message in str(raised.value) and raised.value.blame == "participant"


def test_a_reply_that_cannot_be_taken_apart_is_the_fault_of_the_participant() -> None:
    pa = pytest.importorskip("pyarrow")
    twice = pa.table([[1.0, 2.0], [1.0, 2.0]], names=["y", "y"])
    beyond = {"y": pa.array([2**62, 2**62], pa.timestamp("s"))}
    for reply, message in [
        (twice, "the column 'y' is there twice"),
        (beyond, "the reply cannot be read: OverflowError"),
    ]:
        with pytest.raises(relay.InvalidReply, match=message):
            rows(reply)


def test_a_wrong_value_is_shown_in_short() -> None:
    long = "x" * 10_000_000
    for reply in ({"y": [1.0, 10**5000]}, {"y": [1.0, [long]]}, {"y": [1.0, 2.0], "id": [7, long]}, {long: [1.0]}):
        with pytest.raises(relay.InvalidReply) as raised:
            rows(reply)
        assert len(str(raised.value)) < 300


@pytest.mark.parametrize("ids", [[], [1, 1], 5, None])
def test_wrong_ids_of_a_batch_are_the_fault_of_the_gateway(ids: Any) -> None:
    with pytest.raises(relay.GatewayRaised):
        rows([1.0], ids=ids)


BLAMED = [
    ("unavailable", False, relay.NeverStarted),
    ("unavailable", True, relay.ConnectionLost),
    ("not_found", True, relay.FunctionMissing),
    ("invalid_input", True, relay.Refused),
    ("failed", True, relay.Raised),
    ("worker_failed", True, relay.Crashed),
    ("deadline_exceeded", True, relay.TooSlow),
    ("overloaded", True, relay.InfrastructureError),
    ("unauthenticated", False, relay.InfrastructureError),
    ("permission_denied", False, relay.InfrastructureError),
    ("internal", True, relay.InfrastructureError),
    ("cancelled", True, relay.InfrastructureError),
]


def test_every_kind_has_someone_to_blame() -> None:
    assert {kind for kind, _, _ in BLAMED} == set(KINDS)


@pytest.mark.parametrize(("kind", "has_answered", "expected"), BLAMED)
def test_each_kind_of_failed_call_has_someone_to_blame(kind: str, has_answered: bool, expected: type) -> None:
    error = of_call(KINDS[kind].error("why", kind=kind), "predict", has_answered=has_answered)
    assert type(error) is expected and "why" in str(error)


@pytest.mark.parametrize("kind", ["overloaded", "unavailable", "unauthenticated", "internal", "not_found", "cancelled"])
def test_a_participant_cannot_choose_who_is_to_blame(kind: str) -> None:
    raised = KINDS[kind].error("forged", kind=kind, stage="predict")
    assert type(of_call(raised, "predict", has_answered=True)) is relay.Raised


def test_an_untrusted_server_is_to_blame_for_its_own_errors() -> None:
    error = KINDS["internal"].error("why", kind="internal")
    found = of_call(error, "predict", has_answered=True, is_server_trusted=False)
    assert type(found) is relay.ServerFailed and found.blame == "participant"


# ---- The gateway -----------------------------------------------------------------------------------------------------


class Scores(relay.Gateway):
    columns: ClassVar[Any] = {"y": float}

    def __init__(self, seen: list[str]) -> None:
        super().__init__("http://nowhere.invalid")
        self.seen = seen

    def batches(self) -> Iterator[relay.Batch]:
        for day in (1, 2):
            self.seen.append(f"made {day}")
            yield relay.Batch([day, day], day=day, ids=[f"{day}a", f"{day}b"])

    def check(self, batch: relay.Batch, rows: relay.Rows) -> None:
        self.seen.append(f"checked {batch.kwargs['day']}")
        if rows["y"][0] > 100:
            raise relay.InvalidReply("too large")


class FakeClient:
    """Calls a function in the place of a server."""

    answer: ClassVar[Callable[..., Any]]
    timeouts: ClassVar[list[float]]

    def __init__(self, url: str, **settings: Any) -> None: ...

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None: ...

    def _answer_in_time(self, prepared: Prepared, timeout: float) -> bytes:
        assert (prepared.route, prepared.is_function) == ("predict", True)
        FakeClient.timeouts.append(timeout)
        sent = decode(b"".join(prepared.pieces))
        return encode(FakeClient.answer(*sent["args"], **sent["kwargs"]))


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.relay.gateway.Client", FakeClient)
    FakeClient.timeouts = []


def evaluate(directory: Path, answer: Callable[..., Any], kind: type[Scores] = Scores, **more: Any) -> tuple[Any, Any]:
    FakeClient.answer = staticmethod(answer)  # type: ignore[assignment]
    gateway = kind([])
    result = gateway.run(directory, **more)
    assert json.loads((directory / "result.json").read_text())["error"] == result.error
    return result, gateway.seen


def test_a_batch_is_made_after_the_reply_before_it_is_accepted(tmp_path: Path) -> None:
    result, seen = evaluate(tmp_path, lambda values, day: [value * 0.5 for value in values])
    assert result == relay.Result(True, 2, 4)
    assert seen == ["made 1", "checked 1", "made 2", "checked 2"]
    assert (tmp_path / "submission.csv").read_text() == "id,y\n1a,0.5\n1b,0.5\n2a,1.0\n2b,1.0\n"
    assert FakeClient.timeouts == [1200.0, 300.0], "the first call has the start-up wait as well"


def test_a_failed_evaluation_leaves_no_submission(tmp_path: Path) -> None:
    (tmp_path / "submission.csv").write_text("of an earlier evaluation")
    result, _ = evaluate(tmp_path, lambda values, day: [200 if day == 2 else 1] * 2)
    assert result == relay.Result(False, 1, 2, "participant", "InvalidReply", "too large")
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("name", ["submission.csv", "submission.parquet"])
def test_texts_of_a_participant_make_no_rows_of_their_own(tmp_path: Path, name: str) -> None:
    class Texts(Scores):
        columns: ClassVar[Any] = {"y": str}

        def check(self, batch: relay.Batch, rows: relay.Rows) -> None: ...

    every = ["a\r2a", 'b\n"9z",1', "", "=1+1", " c", "a,b", "\x00d", "NA"]
    for texts in (every[:4], every[4:]):
        if name.endswith(".parquet"):
            parquet = pytest.importorskip("pyarrow.parquet")
            assert evaluate(tmp_path, answer_with(texts), Texts, submission=name)[0].succeeded
            found = parquet.read_table(tmp_path / name).to_pydict()
            assert found == {"id": ["1a", "1b", "2a", "2b"], "y": texts}
        else:
            assert evaluate(tmp_path, answer_with(texts), Texts)[0].succeeded
            written = (tmp_path / name).read_bytes().decode()
            # The `csv` of Python 3.10 does not read a NUL.
            texts = [text.replace("\0", "NUL") for text in texts]
            read = list(csv.reader(io.StringIO(written.replace("\0", "NUL"), newline="")))
            assert read == [["id", "y"], ["1a", texts[0]], ["1b", texts[1]], ["2a", texts[2]], ["2b", texts[3]]]


def answer_with(texts: list[str]) -> Callable[[Any, int], list[str]]:
    return lambda values, day: texts[:2] if day == 1 else texts[2:]


def test_the_result_of_an_earlier_evaluation_is_gone_while_another_runs(tmp_path: Path) -> None:
    seen: list[list[Path]] = []

    def answer(values: Any, day: int) -> list[float]:
        seen.append(list(tmp_path.iterdir()))
        return [1, 2]

    for name in ("result.json", "submission.csv"):
        (tmp_path / name).write_text("of an earlier evaluation")
    assert evaluate(tmp_path, answer)[0].succeeded
    assert seen == [[], []]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json", "submission.csv"]


@pytest.mark.parametrize(("name", "reason"), [("result.json", "result.json"), ("submission.parquet", "pyarrow")])
def test_a_submission_that_cannot_be_written_is_found_before_the_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / name).write_text("of an earlier evaluation")
    # The result is written also to a directory that was not there.
    for directory in (tmp_path, tmp_path / "new"):
        result, seen = evaluate(directory, lambda values, day: [1, 2], submission=name)
        assert (result.blame, seen) == ("gateway", []) and reason in result.message
        assert [path.name for path in directory.iterdir()] == ["result.json"]


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails in the middle leaves neither a part of the file nor anything else."""

    def fail(path: Path, rows: relay.Rows) -> None:
        path.write_text("id,y\n1a")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("callboard.relay.gateway._write_csv", fail)
    result, _ = evaluate(tmp_path, lambda values, day: [1, 2])
    assert (result.blame, result.error) == ("infrastructure", "InfrastructureError")
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_an_exception_of_the_gateway_is_its_own_fault(tmp_path: Path) -> None:
    class Broken(Scores):
        def batches(self) -> Iterator[relay.Batch]:
            yield from super().batches()
            raise FileNotFoundError("day3.csv")

    result, _ = evaluate(tmp_path, lambda values, day: [1, 2], Broken)
    assert (result.blame, result.error, result.batches) == ("gateway", "GatewayRaised", 2)
    assert result.message.startswith("`batches` has raised FileNotFoundError: day3.csv\nTraceback")

    class Unchecked(Scores):
        def check(self, batch: relay.Batch, rows: relay.Rows) -> None:
            raise ZeroDivisionError("in the check")

    result, _ = evaluate(tmp_path, lambda values, day: [1, 2], Unchecked)
    assert (result.blame, result.error, result.batches) == ("gateway", "GatewayRaised", 0)
    assert result.message.startswith("`check` has raised ZeroDivisionError: in the check\nTraceback")

    class Twice(Scores):
        def batches(self) -> Iterator[relay.Batch]:
            yield relay.Batch(1, day=1, ids=["a", "b"])
            yield relay.Batch(1, day=1, ids=["a", "c"])

    result, _ = evaluate(tmp_path, lambda values, day: [1, 2], Twice)
    assert (result.blame, result.message) == ("gateway", "two batches have the same id")

    class Empty(Scores):
        def batches(self) -> Iterator[relay.Batch]:
            yield from ()

    assert evaluate(tmp_path, lambda values, day: [1, 2], Empty)[0].blame == "gateway"


def test_a_submission_that_cannot_be_written_is_nobodys_fault_but_the_hosts(tmp_path: Path) -> None:
    result, _ = evaluate(tmp_path, lambda values, day: [1, 2], submission="missing/submission.csv")
    assert (result.blame, result.error) == ("infrastructure", "InfrastructureError")


# ---- Files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "day1").mkdir(parents=True)
    (root / "day1/test.csv").write_text("a,b\n")
    (tmp_path / "secret").write_text("the answers")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "linked").symlink_to(tmp_path)
    (root / ".hidden").write_text("")
    os.mkfifo(root / "pipe")
    (tmp_path / "shared").mkdir()
    return root


def test_shared_files_are_read_only_copies(root: Path) -> None:
    shared = root.parent / "shared"
    share = relay.FileShare(root, shared)
    assert share.share(["day1/test.csv"]) == [str(shared / "day1/test.csv")]
    copy = shared / "day1/test.csv"
    assert copy.read_text() == "a,b\n" and copy.stat().st_mode & 0o777 == 0o444
    share.clear()
    assert list(shared.iterdir()) == []
    assert share.share(["day1/test.csv"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../secret", "begins with a dot"),
        ("day1/../../secret", "begins with a dot"),
        ("/etc/passwd", "plain relative path"),
        ("day1//test.csv", "plain relative path"),
        ("day1/test.csv/", "plain relative path"),
        ("", "plain relative path"),
        (".hidden", "begins with a dot"),
        ("link", "not a plain file below"),
        ("linked/secret", "not a plain file below"),
        ("pipe", "not a plain file"),
        ("day1", "not a plain file"),
        ("missing", "No such file"),
    ],
)
def test_other_files_are_not_shared(root: Path, name: str, message: str) -> None:
    share = relay.FileShare(root, root.parent / "shared")
    with pytest.raises(relay.GatewayError) as raised:
        share.share([name])
    assert message in str(raised.value)
    assert list((root.parent / "shared").iterdir()) == []


def test_the_share_is_bounded_and_begins_empty(root: Path) -> None:
    shared = root.parent / "shared"
    with pytest.raises(relay.GatewayError, match="the limit of all is 3"):
        relay.FileShare(root, shared, max_bytes=3).share(["day1/test.csv"])
    with pytest.raises(relay.GatewayError, match="the limit is 0 files"):
        relay.FileShare(root, shared, max_files=0).share(["day1/test.csv"])
    share = relay.FileShare(root, shared)
    share.share(["day1/test.csv"])
    with pytest.raises(relay.GatewayError, match="is shared already"):
        share.share(["day1/test.csv"])
    with pytest.raises(relay.GatewayError, match="in an empty directory"):
        relay.FileShare(root, shared)


def test_a_file_that_changes_while_it_is_copied_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, source = root.parent / "shared", root / "day1/test.csv"
    real = os.fstat
    looks: list[int] = []

    def fstat(descriptor: int) -> os.stat_result:
        found = real(descriptor)
        if not looks:
            with source.open("a") as file:
                file.write("more" * 1_000_000)
        looks.append(descriptor)
        return found

    monkeypatch.setattr("callboard.relay.files.os.fstat", fstat)
    share = relay.FileShare(root, shared, max_bytes=100)
    with pytest.raises(relay.GatewayError, match="has changed while it was copied"):
        share.share(["day1/test.csv"])
    monkeypatch.undo()
    assert not any(path.is_file() for path in shared.rglob("*")), "a part of a file is not shared"
    source.write_text("a,b\n")
    assert share.share(["day1/test.csv"]), "and the name is free again"


def test_a_copy_that_fails_at_its_end_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, mode: int) -> None:
        raise OSError(28, "No space left on device")

    (root / "top.csv").write_text("a,b\n")
    share = relay.FileShare(root, root.parent / "shared")
    monkeypatch.setattr("callboard.relay.files.os.fchmod", fail)
    with pytest.raises(relay.InfrastructureError, match="No space left"):
        share.share(["top.csv"])
    monkeypatch.undo()
    assert list((root.parent / "shared").iterdir()) == []
    assert share.share(["top.csv"])


def test_the_participant_can_read_the_copies_whatever_the_umask_and_the_mode_are(root: Path) -> None:
    shared = root.parent / "shared"
    (root / "day1/test.csv").chmod(0o600)
    before = os.umask(0o077)
    try:
        relay.FileShare(root, shared).share(["day1/test.csv"])
    finally:
        os.umask(before)
    assert (shared / "day1").stat().st_mode & 0o777 == 0o755
    assert (shared / "day1/test.csv").stat().st_mode & 0o777 == 0o444


def test_nothing_is_written_through_a_link_in_the_shared_directory(root: Path) -> None:
    """A participant of the same user could put one there."""
    shared, outside = root.parent / "shared", root.parent / "outside"
    outside.mkdir()
    share = relay.FileShare(root, shared)
    (shared / "day1").symlink_to(outside)
    with pytest.raises(relay.RelayError) as raised:
        share.share(["day1/test.csv"])
    assert raised.value.blame == "infrastructure" and list(outside.iterdir()) == []
    (outside / "kept").write_text("")
    share.clear()
    assert list(shared.iterdir()) == [] and (outside / "kept").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(root: Path) -> None:
    (root / "day1/test.csv").chmod(0)
    with pytest.raises(relay.GatewayError, match="Permission denied"):
        relay.FileShare(root, root.parent / "shared").share(["day1/test.csv"])


def test_a_name_that_is_no_text_is_refused(root: Path) -> None:
    for name in (5, None, root / "day1/test.csv"):
        with pytest.raises(relay.GatewayError, match="plain relative path"):
            relay.FileShare(root, root.parent / "shared").share([name])  # type: ignore[list-item]


def test_a_pipe_is_refused_without_waiting_for_its_writer(root: Path) -> None:
    done = threading.Event()

    def share() -> None:
        with pytest.raises(relay.GatewayError, match="not a plain file"):
            relay.FileShare(root, root.parent / "shared").share(["pipe"])
        done.set()

    threading.Thread(target=share, daemon=True).start()
    assert done.wait(10)


def test_an_integer_has_64_bits_with_a_sign() -> None:
    assert rows_of([2**63 - 1, -(2**63)], [7, 8], "id", {"y": int})["y"] == [2**63 - 1, -(2**63)]
    with pytest.raises(relay.InvalidReply, match="no int of 64 bits: row 1"):
        rows_of([1, 2**63], [7, 8], "id", {"y": int})


def test_a_submission_that_cannot_be_removed_is_the_infrastructures_failure(tmp_path: Path) -> None:
    (tmp_path / "submission.csv").mkdir()
    result = relay.Gateway().run(tmp_path)
    assert (result.blame, result.error) == ("infrastructure", "InfrastructureError")


def test_a_deadline_beyond_that_of_a_node_is_refused() -> None:
    """The node would end the call after an hour, and the participant would be blamed for it."""
    relay.Gateway(deadline="1h")
    with pytest.raises(ValueError, match="deadline='2h': a node ends a call after an hour"):
        relay.Gateway(deadline="2h")
