"""Evaluation of code that is not trusted: a gateway sends batches to a participant, in order, and checks each reply.

    class Scores(relay.Gateway):
        columns = {"score": float}

        def batches(self):
            for day in days:
                yield relay.Batch(day.rows, day=day.number, ids=day.ids)

    result = Scores("http://participant:8000").run(Path("out"))

The participant is a file with a function `predict`, marked with `@cb.function`, and `callboard serve participant.py`.

A participant of Kaggle's evaluations, or of `callboard serve participant.py --relay`, is asked with `protocol="grpc"`,
and their gateways ask such a node.
"""

from callboard._models import allow_modules
from callboard.relay.calling import RelayClient
from callboard.relay.errors import (
    ConnectionLost,
    Crashed,
    FunctionMissing,
    GatewayError,
    GatewayRaised,
    InfrastructureError,
    InvalidReply,
    NeverStarted,
    ParticipantError,
    Raised,
    Refused,
    RelayError,
    ServerFailed,
    TooSlow,
)
from callboard.relay.files import FileShare
from callboard.relay.gateway import Batch, Gateway, Result
from callboard.relay.replies import Rows

__all__ = [
    "Batch",
    "ConnectionLost",
    "Crashed",
    "FileShare",
    "FunctionMissing",
    "Gateway",
    "GatewayError",
    "GatewayRaised",
    "InfrastructureError",
    "InvalidReply",
    "NeverStarted",
    "ParticipantError",
    "Raised",
    "Refused",
    "RelayClient",
    "RelayError",
    "Result",
    "Rows",
    "ServerFailed",
    "TooSlow",
    "allow_modules",
]
