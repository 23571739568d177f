"""The CPU cores of each replica, on a node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("httpx")

from conftest import serving
from node import PROGRAM

import callboard as cb

APP = Path(__file__).with_name("cores_app.py")
pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores, on Linux"
)


def test_each_replica_has_its_cores_from_the_import_on(tmp_path: Path) -> None:
    with serving(APP, tmp_path) as node, cb.Client(node.http) as client:
        # Several at a time: one after the other they would go to one replica.
        found = {name: cores for *cores, name in client.stream("/cores", [0.2] * 8, look_ahead=8)}
        assert found == {"a": [[0, 1], [0, 1]], "b": [[1], [1]]}


@pytest.mark.skipif(PROGRAM is None, reason="the program `callboard` is not built")
def test_a_check_starts_the_first_replica_and_a_missing_core_is_an_error(tmp_path: Path) -> None:
    assert PROGRAM is not None

    def check(app: Path) -> tuple[int, str]:
        path = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": path, "VIRTUAL_ENV": sys.prefix}
        done = subprocess.run([PROGRAM, "check", app], env=environment, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    code, said = check(APP)
    assert code == 0 and "/cores: loaded" in said, said
    missing = tmp_path / "missing.py"
    # Those of a replica that `check` does not start, too.
    for replicas, cores in (("2", "[[0, 1023]]"), ("(0, 2)", "[[0], [0, 1023]]")):
        text = APP.read_text().replace("[[0, 1], 1]", cores).replace("replicas=2", f"replicas={replicas}")
        missing.write_text(text.replace(', env=[{"NAME": "a"}, {"NAME": "b"}]', "", 1))
        code, said = check(missing)
        assert code != 0 and "affinity: core 1023 is not there" in said, said
