"""The manifest of an archive: which files it may name, and which module has the handler."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST = "MAR-INF/MANIFEST.json"
MAX_MANIFEST_BYTES = 1 << 20
# The files that a manifest names, beside its handler.
_FILES = ("serializedFile", "modelFile", "requirementsFile", "configFile")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class ArchiveError(ValueError):
    """The archive is refused. Nothing of it stays on the disk."""


def is_plain(name: str) -> bool:
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
        if manifest["model"].get(key) and not is_plain(str(manifest["model"][key])):
            raise ArchiveError(f"{MANIFEST}: model.{key} must be a plain relative path")
    return dict(manifest)


def find_module(directory: Path, handler: str) -> tuple[str, str | None]:
    """The module of the handler, and the name of its function if there is one: `reviews:handle` or `reviews.py`."""
    module, _, function = handler.partition(":")
    module = module.removesuffix(".py").rpartition("/")[2]
    if not module.isidentifier() or not (directory / f"{module}.py").is_file():
        raise ArchiveError(
            f"handler {handler!r}: the archive has no {module}.py; handlers of the server itself are not part of it"
        )
    return module, function or None
