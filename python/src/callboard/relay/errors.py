"""The errors of an evaluation: their class says who is to blame."""

from __future__ import annotations

from typing import Literal

from callboard._exceptions import CallError
from callboard.client.errors import (
    DeadlineExceededError,
    FailedError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
    WorkerFailedError,
)
from callboard.client.policy import REPLY_TOO_LARGE
from callboard.client.transport import CONNECTION_LOST

Blame = Literal["participant", "gateway", "infrastructure"]


class RelayError(Exception):
    """An evaluation has failed."""

    blame: Blame
    """`"participant"`, `"gateway"` or `"infrastructure"`."""


class ParticipantError(RelayError):
    """The participant's code or its answers are wrong."""

    blame: Blame = "participant"


class NeverStarted(ParticipantError):
    """The participant's server did not answer within the start-up wait."""


class ConnectionLost(ParticipantError):
    """The participant's server was there, and has ended or closed the connection."""


class FunctionMissing(ParticipantError):
    """The participant's server has no function of this name."""


class Refused(ParticipantError):
    """The participant's function does not take the arguments: its names or type hints do not fit them."""


class Raised(ParticipantError):
    """The participant's function has raised an exception. The message has its class, but no traceback."""


class Crashed(ParticipantError):
    """The process of the participant's function has ended while it worked on a batch, or gave what cannot be sent."""


class ServerFailed(ParticipantError):
    """The participant's own server has answered with an error of the server: see `Gateway.is_server_trusted`."""


class TooSlow(ParticipantError):
    """There was no reply within the deadline of a batch."""


class InvalidReply(ParticipantError):
    """A reply is too large, or has the wrong number of rows, ids, columns, or type of values."""


class GatewayError(RelayError):
    """The gateway, its data or its settings are wrong: the host is to blame."""

    blame: Blame = "gateway"


class GatewayRaised(GatewayError):
    """The gateway's own code has raised an exception, which is the cause of this error."""


class InfrastructureError(RelayError):
    """The node between both, its keys, or the disk has failed."""

    blame: Blame = "infrastructure"


def of_call(error: CallError, function: str, *, has_answered: bool, is_server_trusted: bool = True) -> RelayError:
    """The error of the evaluation that a failed call means."""
    if error.stage is not None and not isinstance(error, _OF_STAGES):
        # Code in a stage can raise a `CallError` of any kind. It must not choose who is to blame.
        return Raised(f"`{function}` has raised an error of the kind `{error.kind}`: {error.message}")
    if isinstance(error, UnavailableError):
        if has_answered or error.type == CONNECTION_LOST:
            return ConnectionLost(f"the participant's server has gone: {error.message}")
        return NeverStarted(f"the participant's server never answered: {error.message}")
    if isinstance(error, NotFoundError):
        return FunctionMissing(f"the participant has no function `{function}`: {error.message}")
    if error.status_code == 413 and error.stage is None and is_server_trusted:
        return GatewayError(f"the batch is larger than the server takes: {error.message}")
    if isinstance(error, InvalidInputError):
        return Refused(f"`{function}` does not take the arguments of the batch: {error.message}")
    if isinstance(error, FailedError):
        return Raised(f"`{function}` has raised: {error.message}")
    if isinstance(error, WorkerFailedError):
        return Crashed(f"`{function}` has crashed: {error.message}")
    if isinstance(error, DeadlineExceededError):
        return TooSlow(f"`{function}` gave no reply in time: {error.message}")
    if _is_too_large(error):
        return InvalidReply(f"the reply of `{function}` is too large: {error.message}")
    kind = InfrastructureError if is_server_trusted else ServerFailed
    return kind(f"the call of `{function}` failed: {error}")


def _is_too_large(error: CallError) -> bool:
    """Whether there was a reply, and it exceeds `max_reply_bytes` of the gateway or the memory of the node."""
    return isinstance(error, (OverloadedError, InternalError)) and error.type in (REPLY_TOO_LARGE, _NO_MEMORY)


# The error type of a reply that the node has no memory for.
_NO_MEMORY = "no_memory_for_outcome"

# The errors that say the same of a function whether the node or the function itself made them.
_OF_STAGES = (DeadlineExceededError, FailedError, InvalidInputError, WorkerFailedError)
