"""What several files of tests need: a node that serves the file `APP` of their module."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BINARY = Path(sys.executable).with_name("callboard")


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the node. Clients find its certificate, also in processes that the tests start."""
    if not BINARY.exists():
        pytest.skip("no binary beside the interpreter")
    command = [BINARY, "serve", request.module.APP, "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0"]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        environment.setenv("VIRTUAL_ENV", sys.prefix)
        environment.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as node:
            try:
                assert node.stdout is not None
                lines = (line.split() for line in node.stdout)
                yield next(word for line in lines for word in line if word.startswith("quic://"))
            finally:
                node.terminate()
