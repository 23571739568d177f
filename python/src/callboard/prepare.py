"""Runs `prepare` of all services of a file or module: `python -m callboard.prepare [--check] TARGET`.

With `--check` it only says what is needed: exit code 1 if something is, else 0. A failure is one line, and exit code 2.
"""

from __future__ import annotations

import os
import sys
import time

from callboard._app import load_app
from callboard._hooks import Preparation
from callboard._target import split
from callboard.describe import explained
from callboard.doctor import asks_for_help

_USAGE = "usage: python -m callboard.prepare [--check] TARGET, such as app.py or app.py:Name"


def prepare(target: str, *, only_check: bool) -> bool:
    """Prepares what is needed, or only looks. Returns whether something is still needed."""
    routes = load_app(target).routes
    source, name = split(target)
    own = f"{source}:{name.partition('.')[0]}"
    # A class by its name is prepared without what it depends on, which has a name, too. A pipeline is all of its steps.
    alone = [route for route in routes if route.target == own or route.target.startswith(f"{own}.")]
    is_needed = False
    for route in {id(route.owner): route for route in alone or routes}.values():
        preparation = Preparation(route.owner)
        if not preparation.exists():
            continue
        begin, name, place = time.monotonic(), preparation.name, preparation.cache
        if only_check:
            is_needed |= preparation.is_needed()
            print(f"{name}: {'needed, in' if preparation.is_needed() else 'prepared in'} {place}", flush=True)
        elif preparation.run(route.instance()):
            print(f"{name}: prepared in {place} ({time.monotonic() - begin:.1f} s)", flush=True)
        else:
            print(f"{name}: was prepared in {place}", flush=True)
    return is_needed


def main(arguments: list[str]) -> int:
    targets = [each for each in arguments if each != "--check"]
    if asks_for_help(arguments):
        print(_USAGE)
        return 0
    if len(targets) != 1:
        print(_USAGE, file=sys.stderr)
        return 2
    os.environ.pop("PYTHONSAFEPATH", None)
    try:
        return int(prepare(targets[0], only_check="--check" in arguments))
    except (Exception, SystemExit) as error:
        print(f"callboard.prepare: {explained(error)}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
