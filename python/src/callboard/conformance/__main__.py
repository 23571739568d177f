"""The command: one line for each check."""

from __future__ import annotations

import argparse
import sys

from callboard.conformance._checks import CHECKS, failure
from callboard.conformance._node import NotForIt


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m callboard.conformance", description="Checks a worker of any language.")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help="of each wait; default 10")
    parser.add_argument("command", metavar="COMMAND", help="the worker, which implements the echo contract")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS")
    options = parser.parse_args(arguments)
    code = 0
    for name, _ in CHECKS:
        try:
            why = failure(name, [options.command, *options.arguments], options.timeout)
        except NotForIt as error:
            print(f"skipped {name}: it does not {error}", flush=True)
            continue
        print(f"ok {name}" if why is None else f"FAILED {name}: {why}", flush=True)
        if why is not None:
            code = 1
            # Nothing else can succeed.
            if name == "start":
                break
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
