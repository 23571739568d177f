"""What users of other frameworks write, and what is written here: names of this package, options, and attributes."""

from __future__ import annotations

from typing import Any

_ROUTED = (
    "write `@cb.function(route='/x', methods=[{method!r}])`, or `@cb.route('/x', methods=[{method!r}])` in a class"
)
_ANSWER = "return the value; its status and headers are `context.response`, or return a `cb.Response`"
_NO_APP = "there is no object for the app: each `@cb.function` and `@cb.service` of a file is served"
_STREAM = "a function with `yield` is a stream"

# Names that are no names of `callboard`, each with its cure: the name that was meant, or what to write.
NAMES = {
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
    "LitAPI": "did you mean 'service'?",
    "Worker": "did you mean 'service'?",
    "BasePredictor": "did you mean 'service'?",
    "Input": "did you mean 'Field'?",
    "batch": "did you mean 'batched'?",
    "middleware": "did you mean 'auth'?",
    **{name: _ROUTED.format(method=name.upper()) for name in ("delete", "get", "patch", "post", "put")},
    **{
        name: f"did you mean {here!r}?"
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
_DEVICES = "write devices='auto', or devices=['cuda:0', 'cuda:1']"
_MANY = "mark the method with `@cb.concurrent(max=…)`"
OPTIONS = {
    "accelerator": _DEVICES,
    "gpu": _DEVICES,
    "gpus": _DEVICES,
    "num_gpus": _DEVICES,
    "ray_actor_options": _DEVICES,
    "resources": _DEVICES + ", memory_limit='4GiB'",
    "memory": "write memory_limit='4GiB'",
    "concurrency": _MANY,
    "max_concurrent_queries": _MANY,
    "max_inputs": _MANY,
    "max_ongoing_requests": _MANY,
    "batch_timeout": "write max_delay='2ms'",
    "batch_wait_timeout_s": "write max_delay='2ms'",
    "max_latency_ms": "write max_delay='2ms'",
    "max_wait_time": "write max_delay='2ms'",
    "wait_ms": "write max_delay='2ms'",
    "batch_size": "did you mean 'max_batch_size'?",
    "max_batch": "did you mean 'max_batch_size'?",
    "autoscaling_config": "write replicas=(1, 4)",
    "instances": "did you mean 'replicas'?",
    "num": "did you mean 'replicas'?",
    "num_replicas": "did you mean 'replicas'?",
    "workers": "did you mean 'replicas'?",
    "workers_per_device": "did you mean 'replicas'?",
    "path": "did you mean 'route'?",
    "url": "did you mean 'route'?",
    "dependencies": "who may call is told by `cb.auth`, and another service is `cb.depends(…)` in the class",
    "response_class": "write media_type='text/html', or return a `cb.Response`",
    "response_model": "the type of the answer is the hint of the result",
    "stream": _STREAM,
}

# Attributes of files, of pictures by Pillow, and the names here.
FILES = {
    "bytes": "did you mean 'data'?",
    "content": "did you mean 'data'?",
    "content_type": "did you mean 'media_type'?",
    "file": "did you mean 'data'? io.BytesIO(file.data) is a file that can be read",
    "filename": "did you mean 'name'?",
    "getvalue": "did you mean 'data'?",
    "mimetype": "did you mean 'media_type'?",
    "mode": "write `pil().mode`",
    "read": "did you mean 'data'? It has all bytes",
    "save": "write `Path(…).write_bytes(file.data)`",
    "shape": "write `array().shape`",
    "size": "write `len(file)` for its bytes, or `pil().size`",
    "to_numpy": "did you mean 'array'?",
    **{name: f"write `pil().{name}(…)`" for name in ("convert", "crop", "resize", "rotate", "thumbnail", "transpose")},
}

# Attributes of responses.
RESPONSE = {
    "content": "did you mean 'body'?",
    "content_type": "did you mean 'media_type'?",
    "cookies": "write `set_cookie(name, value)`",
    "data": "did you mean 'body'?",
    "mimetype": "did you mean 'media_type'?",
    "status": "did you mean 'status_code'?",
    "text": "did you mean 'body'?",
}

# Attributes of other clients, options of their calls, and what is written here.
_CALL = "write `call('/x', value)`, or `send('x', a, b=1)` with the arguments of the function"
CLIENT = {
    "acall": "the calls of an `AsyncClient` are awaited",
    "batch": "did you mean 'map'?",
    "models": "write `callboard status`",
    "request": _CALL,
    **dict.fromkeys(("delete", "get", "infer", "invoke", "patch", "post", "predict", "put", "remote", "run"), _CALL),
}
_INPUT = "the input is the second argument: `call('/x', {'a': 1})`"
CALL_OPTIONS = {
    "data": _INPUT,
    "files": "a file is bytes in the input: `call('/x', {'image': Path('a.png').read_bytes()})`",
    "input": _INPUT,
    "json": _INPUT,
    "params": "did you mean 'query'?",
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
