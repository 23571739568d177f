"""Cures of wrong names: the nearest one, and what is written here in the place of the words of other frameworks."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant."""
    by_fold = {each.lower().replace("_", ""): each for each in names}
    found = difflib.get_close_matches(name.lower().replace("_", ""), by_fold, n=1)
    return by_fold[found[0]] if found else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    found = nearest_name(name, names)
    return f": did you mean {found!r}?" if found else ""


@dataclasses.dataclass(frozen=True)
class Meant:
    """What to write in the place of a name, where there is the other name that it needs."""

    needs: str
    # None: did you mean the other name?
    text: str | None = None
    # What to write where there is no such name.
    otherwise: str | None = None


# What to write in the place of a name.
Table = Mapping[str, str | Meant]


def cure(name: str, table: Table, public_names: Iterable[str]) -> str | None:
    """What to write in the place of a name: as the table says, else the nearest of the names that there are."""
    names = [each for each in public_names if not each.startswith("_")]
    meant = table.get(name)
    if isinstance(meant, Meant):
        is_there = meant.needs.partition(".")[0] in names
        meant = (meant.text or f"did you mean {meant.needs!r}?") if is_there else meant.otherwise
    near = None if meant else nearest_name(name, names)
    return f"did you mean {near!r}?" if near else meant


def cure_after(name: str, table: Table, public_names: Iterable[str]) -> str:
    """The cure behind a colon, as the end of an error; empty if there is none."""
    found = cure(name, table, public_names)
    return f": {found}" if found else ""


def no_attribute(kind: type, name: str, table: Table) -> NoReturn:
    """Refuses an attribute that the objects of a class lack."""
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"{kind.__name__} has no {name!r}{cure_after(name, table, dir(kind))}")


_ROUTED = (
    "write `@cb.function(route='/x', methods=[{method!r}])`, or `@cb.route('/x', methods=[{method!r}])` in a class"
)
_ANSWER = "return the value; its status and headers are `context.response`, or return a `cb.Response`"
_NO_APP = "there is no object for the app: each `@cb.function` and `@cb.service` of a file is served"
_STREAM = "a function with `yield` is a stream"

# Names that are no names of `callboard`, each with its cure: the name that was meant, or what to write.
NAMES: Table = {
    "APIRouter": _NO_APP,
    "App": _NO_APP,
    "FastAPI": _NO_APP,
    "Router": _NO_APP,
    "BackgroundTasks": "call `context.after(fn, argument)`, with a parameter `context: cb.Context`",
    "Body": "a parameter of the code is a field of the body, without a mark",
    "Depends": "did you mean 'depends'? That is a service that this one calls; who calls is told by `cb.auth`",
    "EventSourceResponse": _STREAM,
    "StreamingResponse": _STREAM,
    "Path": "a parameter in the path has its name, `route='/items/{item_id}'`; for a file did you mean 'File'?",
    "LitAPI": Meant("service"),
    "Worker": Meant("service"),
    "BasePredictor": Meant("service"),
    "Input": Meant("Field"),
    "batch": Meant("batched"),
    "middleware": Meant("auth"),
    **{name: _ROUTED.format(method=name.upper()) for name in ("delete", "get", "patch", "post", "put")},
    **{
        name: Meant(here)
        for name, here in {
            "actor": "keyed",
            "entity": "keyed",
            "authenticate": "auth",
            "on_event": "on_start",
            "on_shutdown": "on_stop",
            "on_startup": "on_start",
            "Counter": "metric",
            "Gauge": "metric",
            "Histogram": "metric",
            "FileResponse": "File",
            "HTMLResponse": "Response",
            "JSONResponse": "Response",
            "PlainTextResponse": "Response",
            "RedirectResponse": "Redirect",
            "UploadFile": "File",
            "mount": "asgi",
            "wsgi": "asgi",
            "api": "route",
            "app": "service",
            "batchable": "batched",
            "bind": "pipeline",
            "chain": "pipeline",
            "cls": "service",
            "deployment": "service",
            "endpoint": "route",
            "method": "route",
            "serve": "run",
        }.items()
    },
}

# Options of decorators by the words of other frameworks.
_ON_SERVICE = "the service has its devices: write `@cb.service(devices='auto')`"
_DEVICES = Meant("devices", "write devices='auto', or devices=['cuda:0', 'cuda:1']", _ON_SERVICE)
_MANY = "mark the method with `@cb.concurrent(max=…)`"
_MAX_DELAY = Meant("max_delay", "write max_delay='2ms'")
OPTIONS: Table = {
    **dict.fromkeys(("accelerator", "gpu", "gpus", "num_gpus", "ray_actor_options"), _DEVICES),
    "resources": Meant("devices", f"{_DEVICES.text}, memory_limit='4GiB'", _ON_SERVICE),
    "memory": Meant("memory_limit", "write memory_limit='4GiB'"),
    **dict.fromkeys(("concurrency", "max_concurrent_queries", "max_inputs", "max_ongoing_requests"), _MANY),
    **dict.fromkeys(
        ("batch_timeout", "batch_wait_timeout_s", "max_latency_ms", "max_wait_time", "wait_ms"),
        _MAX_DELAY,
    ),
    "batch_size": Meant("max_batch_size"),
    "max_batch": Meant("max_batch_size"),
    "autoscaling_config": Meant("replicas", "write replicas=(1, 4)"),
    **dict.fromkeys(("instances", "num", "num_replicas", "workers", "workers_per_device"), Meant("replicas")),
    "path": Meant("route"),
    "url": Meant("route"),
    "dependencies": "who may call is told by `cb.auth`, and another service is `cb.depends(…)` in the class",
    "response_class": Meant("media_type", "write media_type='text/html', or return a `cb.Response`"),
    "response_model": "the type of the answer is the hint of the result",
    "stream": _STREAM,
}

# Attributes of files, of pictures by Pillow, and the names here.
FILES: Table = {
    "bytes": Meant("data"),
    "content": Meant("data"),
    "content_type": Meant("media_type"),
    "file": "did you mean 'data'? io.BytesIO(file.data) is a file that can be read",
    "filename": Meant("name"),
    "getvalue": Meant("data"),
    "mimetype": Meant("media_type"),
    "len": "write `len(file)`",
    "length": "write `len(file)`",
    "mode": Meant("pil", "write `pil().mode`"),
    "read": "did you mean 'data'? It has all bytes",
    "save": "write `Path(…).write_bytes(file.data)`",
    "shape": Meant("pil", "write `array().shape`"),
    "size": Meant("pil", "write `len(file)` for its bytes, or `pil().size`", "write `len(file)`"),
    "to_numpy": Meant("array"),
    **{
        name: Meant("pil", f"write `pil().{name}(…)`")
        for name in ("convert", "crop", "resize", "rotate", "thumbnail", "transpose")
    },
}

# Attributes of responses.
RESPONSE: Table = {
    "content": Meant("body"),
    "content_type": Meant("media_type"),
    "cookies": "write `set_cookie(name, value)`",
    "data": Meant("body"),
    "mimetype": Meant("media_type"),
    "status": Meant("status_code"),
    "text": Meant("body"),
}

# Attributes of requests, as `@auth` gets one, and of the contexts of calls.
_OF_BODY = ("body", "content", "data", "files", "form", "get_json", "json", "stream", "text")
REQUEST: Table = {
    "args": Meant("query"),
    "query_params": Meant("query"),
    "query_string": Meant("query"),
    "url": Meant("path"),
    "remote_addr": Meant("client"),
    "authorization": Meant("bearer"),
    "token": Meant("bearer"),
    **dict.fromkeys(_OF_BODY, "the body is the input, which the parameters of the code are"),
    "app": "what a service keeps is in its `self`",
    "auth": "the caller is context.caller",
    "path_params": "a part of the path is a parameter of the code, of the same name as in the route",
    "state": "what @cb.auth says of a caller is in context.tags",
    "user": "the caller is context.caller",
}
CONTEXT: Table = {
    "add_task": Meant("after"),
    "background": Meant("after"),
    "background_tasks": Meant("after"),
    "cookies": Meant("request.cookies"),
    "id": Meant("request_id"),
    "is_cancelled": Meant("cancelled"),
    "is_disconnected": Meant("cancelled"),
    "query_params": Meant("query"),
    "state": Meant("tags"),
    "timeout": Meant("remaining"),
    "url": Meant("path"),
    "user": Meant("caller"),
}

# What callers of other systems write behind a route.
DEPENDENCY: Table = {
    **dict.fromkeys(("remote", "call", "invoke", "spawn", "send"), "call it: `await self.llm.predict(text)`"),
    "options": Meant("with_options"),
    "stream": "a route that yields is read by `async for token in self.llm.predict(text)`",
}

# Attributes of other clients, options of their calls, and what is written here.
_CALL = "write `call('/x', value)`, or `send('x', a, b=1)` with the arguments of the function"
CLIENT: Table = {
    "acall": "the calls of an `AsyncClient` are awaited",
    "batch": Meant("map"),
    "models": "write `callboard status`",
    "request": _CALL,
    **dict.fromkeys(("delete", "get", "infer", "invoke", "patch", "post", "predict", "put", "remote", "run"), _CALL),
}
_INPUT = "the input is the second argument: `call('/x', {'a': 1})`"
CALL_OPTIONS: Table = {
    "data": _INPUT,
    "files": "a file is bytes in the input: `call('/x', {'image': Path('a.png').read_bytes()})`",
    "input": _INPUT,
    "json": _INPUT,
    "params": Meant("query"),
}

# What other frameworks, and `@auth`, give as a parameter: its package and type.
_HEAD = (
    "take `context: cb.Context`, whose `request` is the head of the request, or a header by "
    "`Annotated[str, cb.Header()]`"
)
PARAMETERS = {
    ("callboard", "Request"): _HEAD,
    ("callboard", "Caller"): "take `context: cb.Context`, whose `caller` is its name",
    ("starlette", "Request"): _HEAD,
    ("starlette", "UploadFile"): "take a `cb.File`",
    ("starlette", "Response"): "take `context: cb.Context`, whose `response` is the answer",
    ("starlette", "BackgroundTasks"): "take `context: cb.Context`, and call `context.after(…)`",
    ("fastapi", "UploadFile"): "take a `cb.File`",
    ("fastapi", "BackgroundTasks"): "take `context: cb.Context`, and call `context.after(…)`",
}

# Responses of other frameworks cannot be sent.
_RESPONSES = ("starlette.responses", "fastapi.responses", "flask.wrappers")


def cure_of_value(value: Any) -> str | None:
    """What to write in the place of a value that cannot be sent."""
    modules = [kind.__module__ for kind in type(value).__mro__]
    if any(module in _RESPONSES for module in modules):
        return _STREAM if hasattr(value, "body_iterator") else _ANSWER
    return None


def cure_of_mark(kind: str, option: str) -> str:
    """What to write in the place of an option of FastAPI's `Query` and the like."""
    if option == "alias":
        return f"the name in the request is cb.{kind}('x-name')"
    if option in ("default", "default_factory"):
        return "a default is that of the argument: `limit: Annotated[int, cb.Query()] = 10`"
    return f"write `Annotated[…, cb.{kind}(), cb.Field({option}=…)]`"


# Functions in the place of types.
_TYPES = {"any": "typing.Any", "array": "np.ndarray"}


def cure_of_hint(hint: Any) -> str:
    """The type that a function in the place of one stands for."""
    meant = None if isinstance(hint, type) else _TYPES.get(getattr(hint, "__name__", ""))
    return f": did you mean `{meant}`?" if meant else ""


_PARTS = ("Body", "Cookie", "File", "Form", "Header", "Path", "Query", "Depends", "Security")
_PART_CURES = {
    "Body": "a parameter is a field of the body without a mark",
    "File": "write `{name}: cb.File`",
    "Path": "write `{name}: int` alone: the route has a parameter of this name",
    "Depends": "who calls is told by `cb.auth`, and another service is `cb.depends(…)` in the class",
    "Security": "who calls is told by `cb.auth`",
}


def cure_of_part(note: Any, name: str) -> str | None:
    """What to write in the place of a mark of FastAPI, such as `Query(3)`, which would have no meaning here."""
    kind = type(note)
    if kind.__module__ not in ("fastapi.params", "fastapi.param_functions") or kind.__name__ not in _PARTS:
        return None
    own = f"write `{{name}}: Annotated[…, cb.{kind.__name__}()]`, with a plain default"
    return f"`{kind.__name__}` of FastAPI: " + _PART_CURES.get(kind.__name__, own).format(name=name)
