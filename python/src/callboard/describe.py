"""Prints what a file or module serves: `python -m callboard.describe TARGET`, one JSON document on standard output.

What user code prints at its import goes to standard error. A target that cannot be served is told there, last, and has
exit code 2.
"""

from __future__ import annotations

import os
import site
import sys
import traceback
from collections.abc import Iterator

import msgspec

from callboard._app import load_app
from callboard._errors import own_attribute
from callboard._said import said
from callboard._target import TargetError
from callboard.doctor import asks_for_help, package_of

PROTOCOL = 1

# The most errors that one line tells.
_MAX_CHAIN = 5
_USAGE = "usage: python -m callboard.describe TARGET, such as app.py, app.py:Name or package.module"


def describe(target: str) -> dict[str, object]:
    """All that a target serves. Raises `TargetError`, and what the import raises."""
    return {"protocol": PROTOCOL, **load_app(target).describe()}


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, as a traceback has them."""
    found: BaseException | None = error
    seen: set[int] = set()
    while found is not None and id(found) not in seen and len(seen) < _MAX_CHAIN:
        seen.add(id(found))
        yield found
        cause, is_context_hidden = own_attribute(found, "__cause__"), own_attribute(found, "__suppress_context__")
        found = cause or (None if is_context_hidden else own_attribute(found, "__context__"))


def _told(error: BaseException) -> str:
    """An error with its place. A syntax error has the line with a caret below it."""
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{os.path.relpath(error.filename)}, line {error.lineno}: "
        _, *marked, _ = traceback.format_exception_only(type(error), error)
        return f"{place}{type(error).__name__}: {error.msg}" + "".join(f"\n{line.rstrip()}" for line in marked)
    return f"{_place(error)}{type(error).__name__}: {said(error)}"


def _place(error: BaseException) -> str:
    """The innermost line of the app's own code, if the error has one."""
    ours, apps = os.path.dirname(__file__), [os.getcwd(), *site.getsitepackages()]
    tail = own_attribute(error, "__traceback__")
    frames = [frame for frame in traceback.extract_tb(tail) if not frame.filename.startswith(ours)]
    inside = [frame for frame in frames if frame.filename.startswith(apps[0])]
    own = [frame for frame in inside if not any(frame.filename.startswith(path) for path in apps[1:])]
    return f"{os.path.relpath(own[-1].filename)}, line {own[-1].lineno}: " if own else ""


def _cure(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = package_of(error.name.partition(".")[0])
        return f"; if it is a package, install it: {sys.executable} -m pip install {package}"
    return ""


def explained(error: BaseException) -> str:
    """An error on one line; a syntax error has the line with a caret below. Standard error has the whole traceback."""
    if isinstance(error, TargetError):
        return str(error)
    try:
        traceback.print_exception(error)
    except Exception as failure:
        print(f"the traceback of {said(error)} cannot be written: {said(failure)}", file=sys.stderr)
    first, *others = _chain(error)
    return f"{_told(first)}{_cure(first)}" + "".join(f"; it came from {_told(each)}" for each in others)


def main(arguments: list[str]) -> int:
    if asks_for_help(arguments):
        print(_USAGE)
        return 0
    if len(arguments) != 1:
        print(_USAGE, file=sys.stderr)
        return 2
    os.environ.pop("PYTHONSAFEPATH", None)
    sys.stdout.flush()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        document = msgspec.json.encode(describe(arguments[0]))
    except (Exception, SystemExit) as error:
        print(f"callboard.describe: {explained(error)}", file=sys.stderr)
        return 2
    with output:
        output.write(document + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
