"""Unpacks an archive into a directory that `callboard serve` takes, and runs nothing of it."""

from __future__ import annotations

import stat
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO

from callboard.mar._manifest import ArchiveError, find_module, is_plain, read_manifest

MAX_FILES = 10_000
MAX_BYTES = 8 << 30
MAX_LEVELS = 32
_CHUNK_BYTES = 1 << 20
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

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
        find_module(made / "model", manifest["model"]["handler"])
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
    if not is_plain(name) or len(path.parts) > MAX_LEVELS:
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
