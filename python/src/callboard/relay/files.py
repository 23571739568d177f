"""Files that a gateway shows to a participant by their paths, with the checks that keep other files out."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from callboard.relay.errors import GatewayError, InfrastructureError

_CHUNK_BYTES = 1 << 20


class FileShare:
    """Copies files of `root` into `directory`, which the participant can read. The copies are read-only.

    Names are relative to `root`, and the copies have the same names below `directory`. A name must be plain: no `..`,
    no hidden part, no symbolic link on the way. A file that changes while it is copied is refused. `max_files` and
    `max_bytes` (64 GiB) bound what lies in `directory` at the same time. All users may read the copies, and no symbolic
    link in `directory` is followed. Raises `GatewayError` for a name, file or size that is refused, and
    `InfrastructureError` if the disk fails.
    """

    def __init__(self, root: Path, directory: Path, *, max_files: int = 10_000, max_bytes: int = 64 << 30) -> None:
        self.directory = directory
        self._root = root
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._shared: dict[str, int] = {}
        if directory.is_symlink() or not directory.is_dir() or any(directory.iterdir()):
            raise GatewayError(f"{directory}: files are shared in an empty directory")

    def share(self, names: Iterable[str]) -> list[str]:
        """Copies the files, and returns the paths of the copies, in the same order.

        Raises `GatewayError` for a name, file or size that is refused; the files before it stay shared.
        """
        return [self._one(name) for name in names]

    def clear(self) -> None:
        """Removes all copies, such as those of the batch before. Raises `InfrastructureError` if the disk fails."""
        try:
            for child in self.directory.iterdir():
                if child.is_dir() and not child.is_symlink():
                    shutil.rmtree(child)
                else:
                    child.unlink()
        except OSError as error:
            raise InfrastructureError(f"{self.directory}: {error}") from error
        self._shared.clear()

    def _one(self, name: str) -> str:
        parts = _checked(name)
        if name in self._shared:
            raise GatewayError(f"{name!r} is shared already")
        if len(self._shared) >= self._max_files:
            raise GatewayError(f"{name!r}: the limit is {self._max_files} files")
        try:
            source = _open_below(self._root, parts)
        except OSError as error:
            raise GatewayError(f"{name!r}: not a plain file below {self._root}: {error.strerror}") from error
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode):
            os.close(source)
            raise GatewayError(f"{name!r}: not a plain file")
        with os.fdopen(source, "rb") as file:
            room = self._max_bytes - sum(self._shared.values())
            if status.st_size > room:
                raise GatewayError(f"{name!r}: {status.st_size} bytes, and the limit of all is {self._max_bytes}")
            target = self.directory.joinpath(*parts)
            try:
                is_same = _copy(file, status, self.directory, parts)
            except OSError as error:
                raise InfrastructureError(f"{target}: {error}") from error
            if not is_same:
                raise GatewayError(f"{name!r}: the file has changed while it was copied")
        self._shared[name] = status.st_size
        return str(target)


def _copy(file: BinaryIO, status: os.stat_result, root: Path, parts: tuple[str, ...]) -> bool:
    """Copies a file. False if it has not stayed as its status says; then there is no copy."""
    directory = _descend(root, parts[:-1], make=True)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        target, is_same = os.open(parts[-1], flags, 0o600, dir_fd=directory), False
        try:
            with os.fdopen(target, "wb") as copy:
                left = status.st_size
                while chunk := file.read(min(left, _CHUNK_BYTES)):
                    copy.write(chunk)
                    left -= len(chunk)
                # One more byte tells that the file has grown.
                has_stayed = not left and not file.read(1) and _version(os.fstat(file.fileno())) == _version(status)
                os.fchmod(target, 0o444)
            # The last bytes are written as the file is closed.
            is_same = has_stayed
        finally:
            if not is_same:
                os.unlink(parts[-1], dir_fd=directory)
        return is_same
    finally:
        os.close(directory)


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _checked(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name if isinstance(name, str) else "")
    if path.is_absolute() or not path.parts or path.as_posix() != name or "\0" in name:
        raise GatewayError(f"{name!r}: the name of a shared file must be a plain relative path")
    if any(part.startswith(".") for part in path.parts):
        raise GatewayError(f"{name!r}: a part of the name begins with a dot")
    return path.parts


def _open_below(root: Path, parts: tuple[str, ...]) -> int:
    """Opens a file step by step, so that no symbolic link is followed, also not one that appears meanwhile."""
    directory = _descend(root, parts[:-1])
    try:
        # A pipe would wait for its writer.
        return os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    finally:
        os.close(directory)


def _descend(root: Path, parts: tuple[str, ...], *, make: bool = False) -> int:
    """A descriptor of a directory, whose parts may be made on the way."""
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            is_new = make and _make(part, directory)
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            os.close(directory)
            directory = inner
            if is_new:
                # The participant may be another user.
                os.fchmod(directory, 0o755)
    except BaseException:
        os.close(directory)
        raise
    return directory


def _make(name: str, directory: int) -> bool:
    try:
        os.mkdir(name, dir_fd=directory)
    except FileExistsError:
        return False
    return True
