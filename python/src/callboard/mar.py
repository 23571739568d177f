"""Model archives of TorchServe and multi-model-server: `python -m callboard.mar reviews.mar reviews/`.

The command unpacks an archive into a directory that `callboard serve` takes, and runs nothing of it. `Handler` then
runs the code of the archive, in the worker.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import stat
import sys
import tempfile
import types
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from callboard._api import Context as CallContext
from callboard._api import HTTPException
from callboard._version import __version__

MANIFEST = "MAR-INF/MANIFEST.json"
MAX_FILES = 10_000
MAX_MANIFEST_BYTES = 1 << 20
MAX_BYTES = 8 << 30
MAX_LEVELS = 32
_CHUNK_BYTES = 1 << 20
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# The files that a manifest names, beside its handler.
_FILES = ("serializedFile", "modelFile", "requirementsFile", "configFile")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")

_APP = '''"""The model `{name}`, from an archive."""

from pathlib import Path
from typing import Any

import callboard as cb
from callboard.mar import Handler


@cb.service(name="model", route="/predictions/{name}")
class Model:
    def setup(self, device: str) -> None:
        self.handler = Handler(Path(__file__).parent / "model", device)

    @cb.batched(max_batch_size=1)
    def predict(self, bodies: list[Any], contexts: list[cb.Context]) -> list[Any]:
        return self.handler(bodies, contexts)
'''

_CONFIGURATION = """[[stage]]
name = "model"
kind = "python"
app = "app.py:Model"

[[route]]
path = "/predictions/{name}"
stages = "model"
"""


class ArchiveError(ValueError):
    """The archive is refused. Nothing of it stays on the disk."""


# ---- Unpacking -------------------------------------------------------------------------------------------------------


def unpack(archive: Path, directory: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> str:
    """Unpacks an archive into a new directory, and returns the name of its model.

    `max_bytes` bounds the bytes of all unpacked files together, `max_files` the count of files and directories.
    Raises `ArchiveError` for a name that leaves the directory, also one in the manifest, a link, two files of one name,
    a file that is neither stored nor deflated, more than a limit allows, or a handler that is not in the archive.
    """
    if directory.exists():
        raise ArchiveError(f"{directory} exists already")
    parent = directory.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".mar-") as temporary:
        made = Path(temporary) / "made"
        try:
            with zipfile.ZipFile(archive) as source:
                _extract(source, made / "model", max_bytes, max_files)
        except (ArchiveError, OSError, MemoryError):
            raise
        except Exception as error:
            # The reader of a damaged archive raises what it comes across.
            raise ArchiveError(f"{archive}: {error}") from error
        manifest = read_manifest(made / "model")
        name = manifest["model"]["modelName"]
        _find_module(made / "model", manifest["model"]["handler"])
        (made / "app.py").write_text(_APP.format(name=name))
        (made / "callboard.toml").write_text(_CONFIGURATION.format(name=name))
        made.rename(directory)
    return str(name)


def _extract(source: zipfile.ZipFile, directory: Path, max_bytes: int, max_files: int) -> None:
    entries = source.infolist()
    # Directories take as much of a file system as files.
    if len(entries) > max_files:
        raise ArchiveError(f"{len(entries)} files and directories: {_limit(max_files)}")
    size = sum(entry.file_size for entry in entries)
    if size > max_bytes:
        raise ArchiveError(f"{size} bytes unpacked: the limit is {max_bytes} (max_bytes, --max-bytes)")
    made: set[PurePosixPath] = set()
    for entry in entries:
        name = _checked_name(entry)
        made.update((name, *name.parents))
        if len(made) > max_files + 1:
            raise ArchiveError(f"more than {max_files} files and directories: {_limit(max_files)}")
    seen: set[str] = set()
    for entry in entries:
        if entry.is_dir():
            continue
        path = directory / _checked_name(entry)
        folded = entry.filename.casefold()
        if folded in seen:
            raise ArchiveError(f"{entry.filename!r}: two files have this name")
        seen.add(folded)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with source.open(entry) as packed, path.open("xb") as file:
                _copy(packed, file, entry.file_size)
        except OSError as error:
            raise ArchiveError(f"{entry.filename!r}: {error.strerror or error}") from error


def _limit(max_files: int) -> str:
    return f"the limit is {max_files} (max_files, --max-files)"


def _copy(packed: IO[bytes], file: IO[bytes], size: int) -> None:
    """Copies an entry, which has the size that it declares."""
    while piece := packed.read(min(size, _CHUNK_BYTES) or 1):
        size -= len(piece)
        if size < 0:
            break
        file.write(piece)
    if size:
        raise zipfile.BadZipFile("a file that is longer or shorter than it declares")


def _checked_name(entry: zipfile.ZipInfo) -> PurePosixPath:
    # The name as it was written: `filename` may be shortened.
    name = entry.orig_filename.removesuffix("/")
    path = PurePosixPath(name)
    if not _is_plain(name) or len(path.parts) > MAX_LEVELS:
        raise ArchiveError(f"{name!r}: the name of a file must be a plain relative path of at most {MAX_LEVELS} parts")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFDIR if entry.is_dir() else stat.S_IFREG):
        raise ArchiveError(f"{name!r}: only plain files are unpacked, no links")
    if entry.compress_type not in _METHODS:
        # zipfile unpacks the others as a whole, whatever size they declare.
        raise ArchiveError(f"{name!r}: compressed by method {entry.compress_type}: only stored and deflated are read")
    if entry.flag_bits & 1:
        raise ArchiveError(f"{name!r}: the file is encrypted")
    return path


def _is_plain(name: str) -> bool:
    """Whether a name is relative and stays below its directory, on every system."""
    path = PurePosixPath(name)
    is_below = not path.is_absolute() and ".." not in path.parts and path.as_posix() == name
    return is_below and not re.search(r"[\\:\x00-\x1f]", name)


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of an unpacked archive, with a valid name and a handler."""
    path = directory / MANIFEST
    if not path.is_file():
        raise ArchiveError(f"there is no {MANIFEST}")
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise ArchiveError(f"{MANIFEST}: the limit is {MAX_MANIFEST_BYTES} bytes")
    try:
        manifest = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{MANIFEST}: {error}") from error
    model = manifest.get("model") if isinstance(manifest, dict) else None
    for key in ("modelName", "handler"):
        if not isinstance(model, dict) or not isinstance(model.get(key), str):
            raise ArchiveError(f"{MANIFEST}: model.{key} must be a text")
    if not _MODEL_NAME.fullmatch(manifest["model"]["modelName"]):
        raise ArchiveError(f"{MANIFEST}: model.modelName: letters, digits and _.- only, at most 128")
    for key in _FILES:
        # A handler joins it to the directory of the model, and opens it.
        if manifest["model"].get(key) and not _is_plain(str(manifest["model"][key])):
            raise ArchiveError(f"{MANIFEST}: model.{key} must be a plain relative path")
    return dict(manifest)


def _find_module(directory: Path, handler: str) -> tuple[str, str | None]:
    """The module of the handler, and the name of its function if there is one: `reviews:handle` or `reviews.py`."""
    module, _, function = handler.partition(":")
    module = module.removesuffix(".py").rpartition("/")[2]
    if not module.isidentifier() or not (directory / f"{module}.py").is_file():
        raise ArchiveError(
            f"handler {handler!r}: the archive has no {module}.py; handlers of the server itself are not part of it"
        )
    return module, function or None


# ---- Serving ---------------------------------------------------------------------------------------------------------


class _Metrics:
    """Takes metrics and drops them: the node has its own."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class Context:
    """What a handler reads of its server, and how it sets the status of an item."""

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
        name, function = _find_module(directory, manifest["model"]["handler"])
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m callboard.mar", description="Unpack a model archive.")
    parser.add_argument("archive", type=Path)
    parser.add_argument("directory", type=Path, help="a new directory, for `callboard serve`")
    parser.add_argument("--max-bytes", type=int, default=MAX_BYTES, help="of all files unpacked (default: %(default)s)")
    parser.add_argument(
        "--max-files", type=int, default=MAX_FILES, help="and directories in the archive (default: %(default)s)"
    )
    arguments = parser.parse_args()
    try:
        limits = {"max_bytes": arguments.max_bytes, "max_files": arguments.max_files}
        name = unpack(arguments.archive, arguments.directory, **limits)
    except (ArchiveError, OSError) as error:
        sys.exit(f"{arguments.archive}: {error}")
    print(f"{name}: callboard serve {os.fspath(arguments.directory)}")


if __name__ == "__main__":
    main()
