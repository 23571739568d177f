"""Runs the code of an unpacked archive, in the worker."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from callboard._context import Context as CallContext
from callboard._exceptions import HTTPException
from callboard._version import __version__
from callboard.mar._manifest import find_module, read_manifest


class _Metrics:
    """Takes metrics and drops them: the node has its own."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class Context:
    """The server as a handler sees it, with the status of each item."""

    def __init__(self, directory: Path, manifest: dict[str, Any], device: str) -> None:
        self.model_name = manifest["model"]["modelName"]
        self.manifest = manifest
        self.metrics = _Metrics()
        index = device.partition(":")[2]
        self.system_properties = {
            "model_dir": str(directory),
            "gpu_id": int(index) if index.isdecimal() else None,
            "batch_size": 1,
            "server_name": "callboard",
            "server_version": __version__,
        }
        self.statuses: dict[int, tuple[int, str | None]] = {}
        self.request_ids: list[str] = []

    def get_request_id(self, idx: int = 0) -> str:
        return self.request_ids[idx] if idx < len(self.request_ids) else ""

    def get_request_header(self, idx: int, key: str) -> None:
        """The headers of a request do not reach a handler."""

    def set_response_content_type(self, idx: int, value: str) -> None:
        """The answer is JSON."""

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """The answer has no headers of the handler."""

    def set_response_status(self, code: int = 200, phrase: str | None = None, idx: int = 0) -> None:
        self.statuses[idx] = (code, phrase)

    def set_all_response_status(self, code: int = 200, phrase: str | None = None) -> None:
        self.statuses.update(dict.fromkeys(range(len(self.statuses)), (code, phrase)))


class Handler:
    """The handler of an unpacked archive: takes the bodies of a batch and their contexts, and gives as many answers.

    `directory` has the files of the archive, and `device` is such as `"cpu"` or `"cuda:0"`. To make one imports the
    module of the handler and loads the model. The fields of a form with a file, and of any other map that has bytes,
    are `data[i]["name"]`. Any other body is `data[i]["body"]`: JSON as plain data, else bytes. An item for which the
    handler sets a status of 400 or more is an `HTTPException` in its place.

    Raises `ArchiveError` for files that are no archive, whatever the handler raises, and `TypeError` for a module
    without one handler, or one that gives another number of answers.
    """

    def __init__(self, directory: Path, device: str = "cpu") -> None:
        directory = directory.resolve()
        manifest = read_manifest(directory)
        name, function = find_module(directory, manifest["model"]["handler"])
        sys.path.insert(0, str(directory))
        module = importlib.import_module(name)
        self._context = Context(directory, manifest, device)
        self._call = _entry(module, function, self._context)

    def __call__(self, bodies: list[Any], contexts: Sequence[CallContext] = ()) -> list[Any]:
        context = self._context
        context.request_ids = [each.request_id or "" for each in contexts]
        context.system_properties["batch_size"] = len(bodies)
        context.statuses = dict.fromkeys(range(len(bodies)), (200, None))
        outputs = self._call([_row(body) for body in bodies], context)
        if not isinstance(outputs, list) or len(outputs) != len(bodies):
            what = f"a list of {len(outputs)}" if isinstance(outputs, list) else type(outputs).__name__
            raise TypeError(f"the handler gives {what}, and not a list of {len(bodies)}")
        return [self._answer(output, *context.statuses[index]) for index, output in enumerate(outputs)]

    def _answer(self, output: Any, code: int, phrase: str | None) -> Any:
        return HTTPException(code, phrase or output) if code >= 400 else output


def _row(body: Any) -> dict[str, Any]:
    # JSON has no bytes, so a map with some is taken for a form with a file. The content type does not reach the worker.
    is_form = isinstance(body, dict) and any(isinstance(value, bytes) for value in body.values())
    return dict(body) if is_form else {"body": body}


def _entry(module: types.ModuleType, function: str | None, context: Context) -> Callable[[Any, Context], Any]:
    """The function `handle`, or that of the only class which has one. It is initialised."""
    found: Callable[[Any, Context], Any] | None = getattr(module, function or "handle", None)
    if found is not None:
        if not hasattr(module, "initialize"):
            # As the servers do: the first call loads the model.
            found(None, context)
        else:
            module.initialize(context)
        return found
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "handle")
    ]
    if len(classes) != 1:
        raise TypeError(f"{module.__name__}.py has {len(classes)} classes with a method `handle`, and must have one")
    handler = classes[0]()
    handler.initialize(context)
    method: Callable[[Any, Context], Any] = handler.handle
    return method
