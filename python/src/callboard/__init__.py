"""Serve Python with Callboard.

    import callboard as cb

    @cb.service(replicas=2, timeout="5s")
    class Sentiment:
        def setup(self, device: str):
            self.model = load("model.bin", device)

        @cb.batched(max_batch_size=32)
        def predict(self, texts: list[str]) -> list[str]:
            return self.model(texts)

`callboard serve app.py` answers `POST /sentiment`. A decorated class stays a plain class.
"""

import importlib

from msgspec import Meta as Field

from callboard._api import auth, batched, concurrent, function, on_start, on_stop, route, service
from callboard._asgi import asgi
from callboard._auth import Caller, Request
from callboard._compose import ensemble, onnx, pick, pipeline, rename, stage, switch
from callboard._context import Context, SetupContext
from callboard._depends import depends
from callboard._elsewhere import NAMES, cure_after
from callboard._exceptions import CallError, HTTPException, InvalidInput
from callboard._keyed import keyed
from callboard._media import Audio, File, Image
from callboard._request import Cookie, Form, Header, Query
from callboard._response import Redirect, Response
from callboard._run import run, start
from callboard._version import __version__
from callboard.client import AsyncClient, Client
from callboard.metrics import metric
from callboard.testing import test_client

__all__ = [
    "AsyncClient",
    "Audio",
    "CallError",
    "Caller",
    "Client",
    "Context",
    "Cookie",
    "Field",
    "File",
    "Form",
    "HTTPException",
    "Header",
    "Image",
    "InvalidInput",
    "Query",
    "Redirect",
    "Request",
    "Response",
    "SetupContext",
    "__version__",
    "asgi",
    "auth",
    "batched",
    "concurrent",
    "depends",
    "ensemble",
    "function",
    "keyed",
    "metric",
    "on_start",
    "on_stop",
    "onnx",
    "pick",
    "pipeline",
    "rename",
    "route",
    "run",
    "service",
    "stage",
    "start",
    "switch",
    "test_client",
]


def __getattr__(name: str) -> object:
    # The types of chats are imported by those who use them.
    if name == "chat":
        return importlib.import_module("callboard.chat")
    raise AttributeError(f"callboard has no {name!r}{cure_after(name, NAMES, __all__)}")
