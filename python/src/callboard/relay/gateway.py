"""The gateway: sends batches to the participant's function one after the other, and writes the submission."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from callboard._envelope import Buffer, MissingPackageError
from callboard._exceptions import CallError
from callboard._options import timeout_ms
from callboard._said import said
from callboard.client import Client, Prepared
from callboard.relay.errors import GatewayError, GatewayRaised, InfrastructureError, RelayError, of_call
from callboard.relay.reading import ReplyReader
from callboard.relay.replies import MAX_REPLY_BYTES, Kind, Rows

# The participant of this machine, by protocol.
_LOCAL = {"http": "http://localhost:8000", "grpc": "localhost"}
# The name of the result file.
RESULT = "result.json"
# The longest error message in a result file, in characters.
MAX_MESSAGE = 8000
# The longest deadline, in seconds. It is that of a node.
MAX_DEADLINE = 3600


class Batch:
    """The arguments of one call of the participant's function, by position and by name, and the ids of its rows.

    `ids` is a list, an array of one dimension or a column of a frame, with one value for each row and none twice. A
    keyword `ids` is not sent. Arguments are any values that a `Client` sends.
    """

    def __init__(self, *args: Any, ids: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs
        self.ids = ids


@dataclasses.dataclass(frozen=True)
class Result:
    """How an evaluation has ended, as it is in `result.json`. The last three are None after a success."""

    succeeded: bool
    """Whether there is a submission."""
    batches: int
    """The count of batches whose reply was accepted."""
    rows: int
    """The count of rows that were accepted."""
    blame: str | None = None
    """`"participant"`, `"gateway"` or `"infrastructure"`."""
    error: str | None = None
    """The name of the error's class, such as `"TooSlow"`."""
    message: str | None = None
    """The text of the error, of at most 8000 characters."""


class Gateway:
    """Evaluates one participant. Derive a class with your own `batches` and `columns`, and the other names if needed.

    * `batches` is asked for the next batch once the reply to the one before is accepted, so a participant cannot see a
      batch before it has answered the one before.
    * The first reply has the start-up wait and the deadline together, since the participant may load a model in it.
      Each later reply has the deadline.
    * A batch is sent once: over HTTP a call whose connection was lost is not repeated. Over gRPC it is sent up to five
      times, as by the gateways of Kaggle's evaluations.
    """

    function: ClassVar[str] = "predict"
    """The name of the participant's function; `"predict"` by default."""
    columns: ClassVar[Mapping[str, Kind]] = {"prediction": float}
    """The name and type of each column of a reply; by default `{"prediction": float}`.

    The types are `bool`, `int`, `float` and `str`.
    """
    id_column: ClassVar[str] = "id"
    """The name of the column of ids in a reply and in the submission; `"id"` by default."""
    listeners: ClassVar[tuple[str, ...]] = ()
    """The names of methods that the participant may call over gRPC while it answers; none by default.

    They see the state of the gateway. One runs at a time.
    """
    listen: ClassVar[str] = "[::]:50052"
    """Where `listeners` are called; by default port 50052 of all interfaces."""
    is_server_trusted: ClassVar[bool] = True
    """Whether the host runs the server, and the participant gave only a file: `True` by default. If not, every answer
    of the server is the participant's, also an error of the server itself.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        protocol: Literal["http", "grpc"] = "http",
        start_up_wait: str | float = "15m",
        deadline: str | float = "5m",
        **settings: Any,
    ) -> None:
        """`start_up_wait` and `deadline` are seconds or a text such as `"15m"`; `settings` are those of `Client`.

        With `protocol="grpc"` the participant's server is one of Kaggle's evaluations, or `callboard serve --relay`:
        `url` is its host, or host and port, and `settings` are those of `RelayClient`. Without a `url` it is on this
        machine.

        A deadline is at most an hour. A reply has at most `max_reply_bytes`, 64 MiB by default.
        Raises `TypeError` or `ValueError` for a time that is wrong.
        """
        if protocol not in _LOCAL:
            raise ValueError(f"protocol={protocol!r}: there are {', '.join(_LOCAL)}")
        self.url = _LOCAL[protocol] if url is None else url
        self._protocol = protocol
        self._start_up_wait = timeout_ms(start_up_wait, "start_up_wait") / 1000
        self._deadline = timeout_ms(deadline, "deadline") / 1000
        if self._deadline > MAX_DEADLINE:
            raise ValueError(f"deadline={deadline!r}: a node ends a call after an hour")
        self._settings = {"max_reply_bytes": MAX_REPLY_BYTES, **settings}

    def batches(self) -> Iterator[Batch]:
        """Yields the batches in order. An exception here is the gateway's own failure, a `GatewayRaised`."""
        raise NotImplementedError(f"{type(self).__name__} has no method `batches`")

    def check(self, batch: Batch, rows: Rows) -> None:
        """Further checks of one reply. Raise `InvalidReply` if the participant is to blame.

        `rows` has the column of ids and the `columns`, each a list of Python values with one entry for each row.
        """

    def replies(self) -> Iterator[tuple[Batch, Rows]]:
        """Sends the batches, and yields each with its accepted reply. Raises `RelayError`."""
        max_bytes = self._settings["max_reply_bytes"]
        with (
            self._listener(),
            self._caller() as client,
            ReplyReader(self.id_column, self.columns, max_bytes, self._protocol) as reader,
        ):
            has_answered = False
            for batch in _guarded(self.batches):
                timeout = self._deadline if has_answered else self._start_up_wait + self._deadline
                until = time.monotonic() + timeout
                reply = self._send(client, batch, timeout, has_answered)
                has_answered = True
                rows = reader.rows(reply, batch.ids, until - time.monotonic())
                self._check(batch, rows)
                yield batch, rows

    def _caller(self) -> _Caller:
        if self._protocol == "http":
            return _HttpCaller(self.url, start_up_wait=self._start_up_wait, attempts=1, **self._settings)
        from callboard.relay.calling import RelayClient

        try:
            return RelayClient(self.url, start_up_wait=self._start_up_wait, **self._settings)
        except MissingPackageError as error:
            raise GatewayError(str(error)) from error

    def _listener(self) -> contextlib.AbstractContextManager[Any]:
        if not self.listeners:
            return contextlib.nullcontext()
        from callboard.relay.listening import Listener

        try:
            return Listener({name: getattr(self, name) for name in self.listeners}, self.listen)
        except MissingPackageError as error:
            raise GatewayError(str(error)) from error
        except OSError as error:
            raise InfrastructureError(str(error)) from error

    def _send(self, client: _Caller, batch: Batch, timeout: float, has_answered: bool) -> Buffer:
        try:
            prepared = client.prepare(self.function, *batch.args, **batch.kwargs)
        except (TypeError, ValueError) as error:
            raise GatewayRaised(f"a batch cannot be sent: {error}") from error
        try:
            return client.reply(prepared, timeout)
        except CallError as error:
            trusted = self.is_server_trusted
            raise of_call(error, self.function, has_answered=has_answered, is_server_trusted=trusted) from error

    def _check(self, batch: Batch, rows: Rows) -> None:
        try:
            self.check(batch, rows)
        except RelayError:
            raise
        except Exception as error:
            raise _raised("check", error) from error

    def run(self, directory: Path, *, submission: str = "submission.csv") -> Result:
        """Evaluates the participant, and writes the submission and `result.json` into the directory.

        The files of an earlier evaluation are removed first. `result.json` is written last: without it the evaluation
        runs still, or its process has ended. Each file appears as a whole.

        A failed evaluation is a `Result` with an error, and has no submission. A name that ends with `.parquet` is
        written by pyarrow. Raises `InfrastructureError` only if the result itself cannot be written.
        """
        total: Rows = {name: [] for name in (self.id_column, *self.columns)}
        count = 0
        failure: RelayError | None = None
        try:
            _prepare(directory, submission)
            for _, rows in self.replies():
                count += 1
                for name, values in rows.items():
                    total[name].extend(values)
            if not count:
                raise GatewayError("the gateway has no batches")
            if len(set(map(repr, total[self.id_column]))) != len(total[self.id_column]):
                raise GatewayError("two batches have the same id")
            _write(directory / submission, total)
        except RelayError as error:
            failure = error
        except Exception as error:
            failure = _raised("run", error)
        rows_count = len(total[self.id_column])
        if failure is None:
            result = Result(True, count, rows_count)
        else:
            message = said(failure)[:MAX_MESSAGE]
            result = Result(False, count, rows_count, failure.blame, type(failure).__name__, message)
        text = json.dumps(dataclasses.asdict(result), indent=2) + "\n"
        _replace(directory / RESULT, lambda file: file.write_text(text, encoding="utf-8"))
        return result


class _Caller(Protocol):
    """What calls the participant."""

    def __enter__(self) -> _Caller: ...

    def __exit__(self, *_: object) -> None: ...

    def prepare(self, name: str, /, *args: Any, **kwargs: Any) -> Any: ...

    def reply(self, call: Any, timeout: float) -> Buffer: ...


class _HttpCaller:
    """Calls functions of a node over HTTP."""

    def __init__(self, url: str, **settings: Any) -> None:
        self._client = Client(url, **settings)

    def __enter__(self) -> _HttpCaller:
        self._client.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.__exit__(*_)

    def prepare(self, name: str, /, *args: Any, **kwargs: Any) -> Prepared:
        return Prepared.send(name, *args, **kwargs)

    def reply(self, call: Prepared, timeout: float) -> Buffer:
        return self._client._answer_in_time(call, timeout)


def _prepare(directory: Path, submission: str) -> None:
    """Removes the files of an earlier run, and finds now what would refuse the submission after the last batch."""
    path = directory / submission
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / RESULT).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InfrastructureError(f"{directory}: {error}") from error
    if path == directory / RESULT:
        raise GatewayError(f"submission={submission!r}: is the name of the result")
    if not path.parent.is_dir():
        raise InfrastructureError(f"{path.parent}: is no directory")
    if path.suffix == ".parquet" and not _has_parquet():
        raise GatewayError(f"submission={submission!r}: needs pyarrow: install `callboard[arrow]`")


def _has_parquet() -> bool:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return False
    return True


def _guarded(batches: Any) -> Iterator[Batch]:
    """The batches; an exception of the gateway's code is its own fault."""
    try:
        for batch in batches():
            if not isinstance(batch, Batch):
                raise TypeError(f"`batches` yields a Batch, not {type(batch).__name__}")
            yield batch
    except (RelayError, GeneratorExit):
        raise
    except Exception as error:
        raise _raised("batches", error) from error


def _raised(where: str, error: Exception) -> GatewayRaised:
    # The end of a traceback is what matters; the host reads it, not the participant.
    trace = "".join(traceback.format_exception(error))
    return GatewayRaised(f"`{where}` has raised {type(error).__name__}: {said(error)}\n{trace[-MAX_MESSAGE // 2 :]}")


def _write(path: Path, rows: Rows) -> None:
    _replace(path, lambda file: _write_parquet(file, rows) if path.suffix == ".parquet" else _write_csv(file, rows))


def _write_csv(path: Path, rows: Rows) -> None:
    """Fields as RFC 4180 has them, and a line feed after each row.

    The writer of Python quotes only the characters of its own line end: a text with the other one would be a row of its
    own for a reader. That of Python 3.10 refuses a text with a NUL.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        for row in (rows, *zip(*rows.values(), strict=True)):
            file.write(",".join(map(_field, row)) + "\n")


def _field(value: Any) -> str:
    if value is None:
        return ""
    text = str(value)
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


# An empty text could be the only one of its line.
_QUOTED = re.compile(r'[",\r\n]|^$')


def _write_parquet(path: Path, rows: Rows) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(rows), path)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file as a whole or not at all, also if the machine stops."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as temporary:
            file = Path(temporary) / path.name
            write(file)
            _sync(file)
            os.replace(file, path)
        # Not every file system has this for a directory.
        with contextlib.suppress(OSError):
            _sync(path.parent)
    except OSError as error:
        raise InfrastructureError(f"{path}: {error}") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
