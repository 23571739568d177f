"""Prints what a file or module serves: `python -m callboard.describe TARGET`, one JSON document on standard output.

What user code prints at its import goes to standard error. A target that cannot be served is one line there, and exit
code 2.
"""

from __future__ import annotations

import os
import site
import sys
import traceback

import msgspec

from callboard._app import load_app
from callboard._target import TargetError
from callboard.doctor import package_of

PROTOCOL = 1


def describe(target: str) -> dict[str, object]:
    """All that a target serves. Raises `TargetError`, and what the import raises."""
    return {"protocol": PROTOCOL, **load_app(target).describe()}


def _place(error: BaseException) -> str:
    """The innermost line of the app's own code, if the error has one."""
    ours, apps = os.path.dirname(__file__), [os.getcwd(), *site.getsitepackages()]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    inside = [frame for frame in frames if frame.filename.startswith(apps[0])]
    own = [frame for frame in inside if not any(frame.filename.startswith(path) for path in apps[1:])]
    return f"{os.path.relpath(own[-1].filename)}, line {own[-1].lineno}: " if own else ""


def _cure(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = package_of(error.name.partition(".")[0])
        return f"; if it is a package, install it: {sys.executable} -m pip install {package}"
    return ""


def said(error: BaseException) -> str:
    """One line about an error. Standard error has the traceback of what user code has raised."""
    if isinstance(error, TargetError):
        return str(error)
    traceback.print_exception(error)
    return f"{_place(error)}{type(error).__name__}: {error}{_cure(error)}"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m callboard.describe TARGET, such as app.py or app.py:Name", file=sys.stderr)
        return 2
    os.environ.pop("PYTHONSAFEPATH", None)
    sys.stdout.flush()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        document = msgspec.json.encode(describe(arguments[0]))
    except (Exception, SystemExit) as error:
        print(f"callboard.describe: {said(error)}", file=sys.stderr)
        return 2
    with output:
        output.write(document + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
