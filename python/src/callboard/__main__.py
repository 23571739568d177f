"""`python -m callboard` is the program `callboard` of this environment, whose services run in this interpreter."""

import os
import sys

from callboard._run import environment, program

if __name__ == "__main__":
    try:
        command = [program(), *sys.argv[1:]]
    except FileNotFoundError as error:
        raise SystemExit(f"error: {error}") from None
    os.execve(command[0], command, environment())
