"""The peers: how each is named, installed and asked. Its settings and its start are in `peer_{name}.py`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

from cases import CASES, OWN, Request, work

HERE = Path(__file__).resolve().parent
ALL_CASES = (*CASES, "work")


@dataclasses.dataclass(frozen=True)
class Peer:
    name: str
    title: str
    # The file with its services, and that with the packages of its environment.
    file: str
    packages: str
    cases: tuple[str, ...] = ALL_CASES
    # Further variables of its process.
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    # How its requests differ from those of `cases`.
    change: Callable[[str, Request], Request] = lambda case, request: request
    start_seconds: float = 60

    def request(self, case: str) -> Request:
        return self.change(case, {**CASES, **OWN}[case].request)

    def work(self, milliseconds: float) -> Request:
        return self.change("work", work(milliseconds))

    @property
    def script(self) -> Path:
        return HERE / self.file

    @property
    def requirements(self) -> Path:
        return HERE / "requirements" / f"{self.packages}.txt"


def _with_body(request: Request, value: object, path: str | None = None) -> Request:
    return dataclasses.replace(request, body=json.dumps(value).encode(), path=path or request.path)


def _rust(case: str, request: Request) -> Request:
    return dataclasses.replace(request, path="/echo")


def _bentoml(case: str, request: Request) -> Request:
    """A batched method takes a list; others take their arguments by name."""
    if case in ("square", "slow_square"):
        return _with_body(request, {"items": [json.loads(request.body)]})
    if case == "tensor":
        return dataclasses.replace(request, headers={"content-type": "application/octet-stream"})
    return request if case == "stream" else _with_body(request, {"item": json.loads(request.body)})


def _cog(case: str, request: Request) -> Request:
    return _with_body(request, {"input": json.loads(request.body)}, "/predictions")


PEERS = {
    peer.name: peer
    for peer in (
        Peer("callboard", "Callboard", "peer_callboard.py", "callboard", cases=(*ALL_CASES, "noop", "told")),
        # The same edge and command line in front of an echo in Rust, in the process of the server.
        Peer("rust", "Callboard, stage in Rust", "peer_rust.py", "callboard", cases=("noop",), change=_rust),
        Peer("axum", "axum alone, no model", "peer_axum.py", "callboard", cases=("square",)),
        Peer("mosec", "mosec", "peer_mosec.py", "mosec"),
        Peer(
            *("mosec_msgspec", "mosec, JSON by msgspec", "peer_mosec.py", "mosec"),
            # Its faults are those of mosec.
            cases=tuple(CASES),
            variables={"PEERS_JSON": "msgspec"},
        ),
        Peer("cog", "Cog", "peer_cog.py", "cog", cases=("echo", "square", "work"), change=_cog),
        Peer("litserve", "LitServe", "peer_litserve.py", "litserve"),
        Peer("bentoml", "BentoML", "peer_bentoml.py", "bentoml", change=_bentoml),
        Peer("uvicorn", "FastAPI on uvicorn", "peer_fastapi.py", "fastapi", variables={"PEERS_SERVER": "uvicorn"}),
        Peer("granian", "FastAPI on Granian", "peer_fastapi.py", "fastapi", variables={"PEERS_SERVER": "granian"}),
        Peer(
            *("mpservice", "mpservice", "peer_mpservice.py", "mpservice"),
            cases=("echo", "square", "slow_square", "tensor", "work"),
        ),
        Peer("ray", "Ray Serve", "peer_ray.py", "ray", start_seconds=180),
    )
}
