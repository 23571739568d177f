"""Serves as `callboard serve` does: `run` from a script, under `if __name__ == "__main__"`, `start` beside it."""

from __future__ import annotations

import os
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from callboard._options import timeout_ms
from callboard._target import TargetError

if TYPE_CHECKING:
    from callboard._start import StartedNode


def run(app: Any = None, /, **settings: Any) -> None:
    """Serves `app`, or all of the script that calls this: `cb.run(Sentiment, http="127.0.0.1:8000")`.

    `app` is a service, a function or a pipeline at the top of a file, or a target such as `"app.py"`. The settings are
    those of `callboard serve`, with underscores: `http`, `max_in_flight`, `reload=True`. Call it under
    `if __name__ == "__main__":`, because the workers import the script.

    A script becomes the server, so that this does not return, and Ctrl-C ends it. In a notebook it serves a file until
    it is interrupted.

    Raises `FileNotFoundError` without the program `callboard` in this environment or on `PATH`, `TargetError` for an
    app that is not at the top of a file, and in a notebook `RuntimeError` if the server ends with an error.
    """
    command = command_of(app, settings)
    sys.stdout.flush()
    sys.stderr.flush()
    if hasattr(sys.modules["__main__"], "__file__"):
        os.execve(command[0], command, environment())
    _wait(command, environment())


def start(app: Any = None, /, *, timeout: str | float | None = None, **settings: Any) -> StartedNode:
    """Serves `app` in the background, for a notebook: `with cb.start("app.py") as node`, then `node.client()`.

    `app` and the settings are those of `run`. Without `http` and `admin` the node takes free ports of the loopback
    interface, and without `drain_delay` it ends as soon as its calls have. It is ready when this returns: after
    `timeout` at the latest, such as `"90s"` or a number of seconds. What it logs is printed here, so that it appears in
    the cell. An interrupted cell does not end it; `node.stop()` does, and the end of this interpreter.

    Raises `FileNotFoundError` and `TargetError` as `run` does, `RuntimeError` for a node that does not start, and
    `TimeoutError` for one that is not ready in time, which ends then.
    """
    # A worker imports this package too, and starts no node.
    from callboard._start import StartedNode

    seconds = None if timeout is None else timeout_ms(timeout) / 1000
    # No load balancer sends it calls, whose notice it would have to wait for.
    alone = {"http": "127.0.0.1:0", "admin": "127.0.0.1:0", "drain_delay": "0s"}
    return StartedNode(command_of(app, alone | settings), environment(), seconds)


def command_of(app: Any, settings: dict[str, Any]) -> list[str]:
    """The command line that serves it."""
    main = sys.modules["__main__"]
    if (getattr(main, "__package__", None) or "").partition(".")[0] == "callboard":
        raise TargetError('the app is served while its file is imported: put it under `if __name__ == "__main__":`')
    return [program(), "serve", target_of(app, main), *_options(settings)]


def program() -> str:
    """The program that was installed with this package, else the one on `PATH`."""
    found = shutil.which("callboard", path=os.pathsep.join(_scripts())) or shutil.which("callboard")
    if found is None:
        raise FileNotFoundError(
            "the program `callboard` is neither in this environment nor on PATH: a wheel has it, and "
            "`pip install .` at the root of a clone builds it"
        )
    return found


def _scripts() -> list[str]:
    """Where a wheel of this package puts its program: for all users of the interpreter, or for this one."""
    found = [sysconfig.get_path("scripts")]
    if site.ENABLE_USER_SITE:
        found.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    return found


def target_of(app: Any, main: ModuleType) -> str:
    """What `callboard serve` is told to serve."""
    if isinstance(app, str):
        return app
    owner = main if app is None else _module_of(app, main)
    file = getattr(owner, "__file__", None)
    if file is None:
        raise TargetError(
            "a node serves a file, and this interpreter runs none: write the service to a file (in a notebook with "
            '`%%writefile app.py`), then cb.start("app.py"); cb.test_client(app) runs it here'
        )
    if app is None:
        return str(file)
    names = [name for name, value in vars(owner).items() if value is app]
    if not names:
        raise TargetError(f"{app!r} has no name at the top of {file}: a worker finds only what has one")
    return f"{file}:{names[0]}"


def _module_of(app: Any, main: ModuleType) -> ModuleType:
    """The module that has it: a pipeline does not say, and what was imported is served where it comes from."""
    own = sys.modules.get(getattr(app, "__module__", ""), main)
    return own if any(value is app for value in vars(own).values()) else main


def _options(settings: dict[str, Any]) -> list[str]:
    words = {True: "true", False: "false", None: "none"}
    found = []
    for name, value in settings.items():
        if name == "reload":
            found += ["--reload"] if value else []
            continue
        listed = value if isinstance(value, (list, tuple)) else [value]
        text = ",".join(words[each] if each is None or isinstance(each, bool) else str(each) for each in listed)
        found.append(f"--{name.replace('_', '-')}={text}")
    return found


def environment() -> dict[str, str]:
    """Its workers run in this interpreter, and find this package."""
    variables = dict(os.environ)
    own = os.path.join(sys.prefix, "bin", "python")
    if os.path.exists(own) and os.path.realpath(own) == os.path.realpath(sys.executable):
        variables["VIRTUAL_ENV"] = sys.prefix
    else:
        variables.pop("VIRTUAL_ENV", None)
        variables["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    package = str(Path(__file__).parents[1])
    known = variables.get("PYTHONPATH", "").split(os.pathsep)
    if "site-packages" not in package and package not in known:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (package, *known)))
    return variables


def _wait(command: Sequence[str], variables: dict[str, str]) -> None:
    """Until it ends, or this interpreter is interrupted: the server then ends its calls first."""
    # A terminal's Ctrl-C would reach it beside ours, and a second one means at once.
    with subprocess.Popen(command, env=variables, start_new_session=True) as server:
        try:
            code = server.wait()
        except KeyboardInterrupt:
            server.send_signal(signal.SIGINT)
            code = server.wait()
    if code:
        raise RuntimeError(f"{command[0]} serve ended with code {code}")
