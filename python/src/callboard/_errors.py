"""Exceptions of user code as the maps of the worker protocol, cut to what the head of a frame holds."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, TypeVar

import msgspec

from callboard._arrays import plain as plain_of
from callboard._envelope import EnvelopeError, type_name
from callboard._exceptions import CallError, HTTPException, InvalidInput
from callboard._headers import sendable
from callboard._runner import Cancelled
from callboard._said import MAX_TEXT, clip, said
from callboard._target import TargetError

# As many wrong fields as the HTTP edge lists.
_MAX_FIELDS = 32
# A node reads a head of 64 levels.
_MAX_DETAIL_LEVELS = 32
# An attribute of user code may make a new error each time that it is read.
_MAX_CAUSES = 1000
_PACKAGE = os.path.dirname(os.path.abspath(__file__))

log = logging.getLogger("callboard")
_encode = msgspec.msgpack.Encoder().encode
E = TypeVar("E", bound=BaseException)


def failed(error: BaseException) -> dict[str, Any]:
    """An exception before `ready` as a message."""
    try:
        message, trace = clip(_message(error)), clip(_trace(error) or _trace(error, whole=True) or "")
    except BaseException as second:
        message, trace = _unsaid(error, second), ""
    return {"type": "failed", "message": message, "trace": trace}


def error_of(error: dict[str, Any]) -> CallError:
    """The protocol's map as the error of a call."""
    # A worker that sees no error does not need it.
    from callboard.client.errors import KINDS

    is_invalid = error.get("invalid")
    millis = error.get("retry_after_ms")
    name = error.get("kind") or ("invalid_input" if is_invalid else "failed")
    kind = KINDS.get(name)
    return (CallError if kind is None else kind.error)(
        str(error.get("message", "")),
        kind=name,
        status_code=error.get("status") or (422 if is_invalid else None),
        type=error.get("type"),
        details=error.get("details"),
        retry_after=None if millis is None else millis / 1000,
        headers=error.get("headers"),
        remote_traceback=error.get("trace"),
        stage=error.get("stage"),
        retryable=error.get("retryable", False),
    )


def call_error(error: BaseException) -> CallError:
    """An exception of the called code, as its caller sees it behind a node."""
    return error if isinstance(error, CallError) else error_of(error_map(error))


def error_map(error: BaseException) -> dict[str, Any]:
    """An exception as the protocol's map."""
    try:
        return _error_map(error)
    except BaseException as second:
        return {"message": _unsaid(error, second), "type": type_name(error)}


def _unsaid(error: BaseException, second: BaseException) -> str:
    """The attributes and texts of an error are user code, which may raise or exit. It has failed all the same."""
    return f"{type_name(error)}, which cannot be told: {type_name(second)}"


def _error_map(error: BaseException) -> dict[str, Any]:
    if isinstance(error, InvalidInput) and error.fields:
        fields = [{"path": clip(path), "message": clip(message)} for path, message in error.fields[:_MAX_FIELDS]]
        return {"message": said(error), "invalid": True, "details": {"fields": fields}}
    if isinstance(error, (InvalidInput, EnvelopeError)):
        return {"message": said(error), "invalid": True}
    if isinstance(error, HTTPException):
        return _http_error(error)
    of_fastapi = _from_starlette(error)
    if of_fastapi is not None:
        return _http_error(of_fastapi)
    if isinstance(error, CallError):
        return _passed_on(error)
    if isinstance(error, Cancelled):
        return {"message": "cancelled: the caller has left", "type": "Cancelled"}
    found: dict[str, Any] = {"message": clip(_message(error)), "type": type_name(error)}
    trace = _trace(error)
    if trace:
        found["trace"] = clip(trace)
    return found


def _from_starlette(error: Any) -> HTTPException | None:
    """The exception of FastAPI, which code that has come from there may raise."""
    kinds = ((kind.__module__, kind.__name__) for kind in type(error).__mro__)
    if ("starlette.exceptions", "HTTPException") not in kinds or not 400 <= error.status_code <= 599:
        return None
    headers, left_out = sendable(error.headers)
    if left_out:
        _warn_of_headers(tuple(sorted(set(left_out))))
    return HTTPException(error.status_code, error.detail, headers)


@functools.lru_cache(maxsize=64)
def _warn_of_headers(names: tuple[str, ...]) -> None:
    """Once for each set of names, and again after many other ones."""
    log.warning("an HTTPException of FastAPI loses headers that the answer of an error cannot have: %s", names)


def _http_error(error: HTTPException) -> dict[str, Any]:
    found: dict[str, Any] = {"message": clip(error.message), "status": error.status_code}
    if not isinstance(error.detail, str):
        found["details"] = _details(error.detail)
    if error.retry_after is not None:
        found["retry_after_ms"] = error.retry_after * 1000
    if error.other_headers:
        found["headers"] = error.other_headers
    return found


def _passed_on(error: CallError) -> dict[str, Any]:
    """The error of a call that this one has made."""
    more = {
        "status": error.status_code,
        "type": error.type,
        "retry_after_ms": None if error.retry_after is None else round(error.retry_after * 1000),
        "stage": error.stage,
        "headers": error.headers,
    }
    found = {"message": clip(error.message), "kind": error.kind, **{key: more[key] for key in more if more[key]}}
    if error.details is not None:
        found["details"] = _details(error.details)
    # The place of the call is no part of its failure.
    return {**found, "trace": clip(error.remote_traceback)} if error.remote_traceback else found


def _details(detail: Any) -> Any:
    """Details as plain MessagePack. Keys that are numbers become texts: an error must reach its caller."""
    try:
        plain = msgspec.to_builtins(plain_of(detail), str_keys=True)
        fits = _is_flat(plain, _MAX_DETAIL_LEVELS) and len(_encode(plain)) <= MAX_TEXT
        return plain if fits else said(detail, repr)
    except BaseException:
        # It has values of user code, which are asked for their fields.
        return said(detail, repr)


def _is_flat(value: Any, levels: int) -> bool:
    """Whether lists and maps go no deeper than this many levels."""
    if not isinstance(value, (list, tuple, dict)):
        return True
    children = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_flat(child, levels - 1) for child in children)


def _message(error: BaseException) -> str:
    """The last line of a traceback."""
    if isinstance(error, TargetError):
        return said(error)
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def said_in_line(error: BaseException) -> str:
    """`_message` on one line."""
    return " ".join(_message(error).split())


def _trace(error: BaseException, *, whole: bool = False) -> str | None:
    """The traceback from the first frame of user code on; None if there is none."""
    tail: TracebackType | None = error.__traceback__
    while not whole and tail is not None and tail.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        tail = tail.tb_next
    if tail is None and not whole:
        return None
    return "".join(traceback.format_exception(type(error), error, tail))


# ---- What an error holds ---------------------------------------------------------------------------------------------

# An error refers to its frames, a frame to its variables, such as arrays, and often to its error. Only the collector of
# cycles would free them, which counts objects and not bytes. Since Python 3.12 the frame of a generator or coroutine
# that is over also refers to the frames that ran it: an error that a generator with `contextmanager` catches is a
# cycle, because a frame of `contextlib` has it.
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def forget(error: BaseException) -> None:
    """Frees what the code of a failed call held. For an error that is told already: it loses its traceback."""
    for each in _with_causes(error):
        tail = own_attribute(each, "__traceback__")
        BaseException.with_traceback(each, None)
        for frame, _ in traceback.walk_tb(tail):
            # A coroutine that has caught the error may wait for something else by now: to clear it would end it.
            if not frame.f_code.co_flags & _SUSPENDS:
                _clear(frame)


def let_go(error: E) -> E:
    """The error with its traceback, whose frames of this package hold nothing any more. They are over."""
    for each in _with_causes(error):
        tail = own_attribute(each, "__traceback__")
        frames: Iterator[tuple[FrameType, int]] = traceback.walk_tb(tail)
        for frame, _ in [*frames, *(traceback.walk_stack(tail.tb_frame) if tail else ())]:
            if frame.f_code.co_filename.startswith(_PACKAGE):
                _clear(frame)
    return error


def _clear(frame: FrameType) -> None:
    # It may run.
    with contextlib.suppress(RuntimeError):
        frame.clear()


def is_handled(error: BaseException) -> bool:
    """Whether a running frame has caught it: Python takes it for the context of the errors of further calls."""
    tail = own_attribute(error, "__traceback__")
    return tail is not None and any(frame is tail.tb_frame for frame, _ in traceback.walk_stack(sys._getframe()))


def _with_causes(error: BaseException) -> list[BaseException]:
    """The error and the errors that led to it, without what the caller handles.

    Nothing that user code has made of them raises here.
    """
    found: dict[int, BaseException] = {}
    waiting: list[Any] = [error]
    while waiting and len(found) < _MAX_CAUSES:
        each = waiting.pop()
        # `isinstance` would ask the object for its class.
        is_new = issubclass(type(each), BaseException) and id(each) not in found
        if is_new and (each is error or not is_handled(each)):
            found[id(each)] = each
            waiting += (
                own_attribute(each, "__cause__"),
                own_attribute(each, "__context__"),
                *own_attribute(each, "args"),
                *_grouped(each),
            )
    return list(found.values())


def own_attribute(error: BaseException, name: str) -> Any:
    """An attribute of `BaseException` itself: a class of user code may have another one of this name."""
    return BaseException.__dict__[name].__get__(error)


def _grouped(error: BaseException) -> tuple[Any, ...]:
    """The members of a group. Other classes may have anything under this name."""
    try:
        members = getattr(error, "exceptions", ())
        return tuple(members) if isinstance(members, (tuple, list)) else ()
    except BaseException:
        return ()


def shortened(item: dict[str, Any] | None, room: int) -> dict[str, Any] | None:
    """An error without what makes a head too long. A character has at most four bytes."""
    if item is None:
        return None
    kept = {key: value for key, value in item.items() if key not in ("trace", "details", "type")}
    return {**kept, "message": kept["message"][:room]}
