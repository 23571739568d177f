"""What several files of tests need: a node that serves the file `APP` of their module."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from node import PROGRAM


class Served:
    """A node and its addresses."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process, self.lines = process, iter(process.stdout)
        found: dict[str, str] = {}
        for word in (word for line in self.lines for word in line.split() if "://127.0.0.1" in word):
            found.setdefault(word.partition(":")[0], word)
            if len(found) == 2:
                break
        self.http, self.quic = found["http"], found["quic"]


@contextlib.contextmanager
def serving(app: Path | str, state: Path, *flags: str) -> Iterator[Served]:
    """A node that serves a file. Clients find its certificate, also in processes that the tests start."""
    if PROGRAM is None:
        pytest.skip("needs the program `callboard`")
    command = [PROGRAM, "serve", app, "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0", *flags]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        environment.setenv("VIRTUAL_ENV", sys.prefix)
        environment.setenv("XDG_STATE_HOME", str(state))
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                yield Served(process)
            finally:
                process.terminate()


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(request.module.APP, tmp_path_factory.mktemp("state")) as served:
        yield served


@pytest.fixture(scope="module")
def url(node: Served) -> str:
    """The address of the node over QUIC."""
    return node.quic
