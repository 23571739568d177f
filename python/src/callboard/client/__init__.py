"""Calls of a node from Python: `Client` and `AsyncClient`, over any transport, with a class for each kind of error."""

from callboard.client._asynchronous import AsyncClient
from callboard.client._base import Prepared
from callboard.client._blocking import Client
from callboard.client.errors import (
    CancelledCallError,
    DeadlineExceededError,
    FailedError,
    InternalError,
    InvalidInputError,
    InvalidOutputError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
    WorkerFailedError,
)
from callboard.client.streams import AsyncStream, Stream

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "CancelledCallError",
    "Client",
    "DeadlineExceededError",
    "FailedError",
    "InternalError",
    "InvalidInputError",
    "InvalidOutputError",
    "NotFoundError",
    "OverloadedError",
    "PermissionDeniedError",
    "Prepared",
    "Stream",
    "UnauthenticatedError",
    "UnavailableError",
    "WorkerFailedError",
]
