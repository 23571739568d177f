"""Replicas on devices: what each of them sees. A real node runs them; the devices are names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from node import PROGRAM

import callboard as cb
from callboard._target import routes_of

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="the program `callboard` is not built")

APP = """
import os
import callboard as cb

OF_IMPORT = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("OWN")

@cb.service({options})
class Placed:
    def setup(self, device: str) -> None:
        self.device = device

    async def predict(self) -> list[str | None]:
        import asyncio
        # The next call goes to another replica.
        await asyncio.sleep(0.05)
        return [self.device, *OF_IMPORT]
"""


def placed(directory: Path, monkeypatch: pytest.MonkeyPatch, options: str, **variables: str) -> set[tuple[Any, ...]]:
    """What the replicas see that answer."""
    assert PROGRAM is not None
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(Path(PROGRAM).parent), prepend=os.pathsep)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (directory / "placed.py").write_text(APP.format(options=options))
    with cb.start(str(directory / "placed.py")) as node:
        client = node.client()
        return {tuple(seen) for seen in client.map("/placed", [{}] * 32, in_flight=8)}


@pytest.mark.parametrize("more", ["", ", warm=False", ", share_setup=True", ", replicas=4"])
def test_each_replica_sees_its_device_alone_before_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    seen = placed(tmp_path, monkeypatch, f'devices=["cuda:0", "cuda:1"]{more}')
    assert seen == {("cuda:0", "0", None), ("cuda:0", "1", None)}


def test_the_numbers_are_those_of_the_devices_that_the_node_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = placed(tmp_path, monkeypatch, 'devices=["cuda:1", "cpu"]', CUDA_VISIBLE_DEVICES="5,MIG-8f")
    assert seen == {("cuda:0", "MIG-8f", None), ("cpu", "5,MIG-8f", None)}


def test_each_replica_has_variables_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = placed(tmp_path, monkeypatch, 'replicas=2, env=[{"OWN": "a"}, {"OWN": "b"}]')
    assert seen == {("cpu", None, "a"), ("cpu", None, "b")}
    seen = placed(tmp_path, monkeypatch, 'devices=["cuda:2", "cuda:3"], env=[{"OWN": "a"}, {"OWN": "b"}]')
    assert seen == {("cuda:0", "2", "a"), ("cuda:0", "3", "b")}


def test_all_devices_are_one_replica_on_the_cpu_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # A machine with devices is told to show none.
    seen = placed(tmp_path, monkeypatch, 'devices="auto"', CUDA_VISIBLE_DEVICES="")
    assert seen == {("cpu", "", None)}
    assert "no device was found: the stage runs on the CPU" in "".join(capfd.readouterr())


def test_as_many_replicas_as_devices_and_sets_of_variables_or_the_error_has_both_numbers() -> None:
    def fn(x: int) -> int:
        return x

    options: list[tuple[dict[str, Any], str]] = [
        ({"replicas": 3, "devices": ["cuda:0", "cuda:1"]}, "replicas=3 on 2 devices"),
        ({"replicas": 3, "env": [{}, {}]}, "2 sets of variables for replicas=3"),
        ({"device": "cuda:0", "devices": "auto"}, "remove device='cuda:0'"),
    ]
    for wrong, message in options:
        with pytest.raises(ValueError, match=message):
            cb.function(**wrong)(fn)
    (route,) = routes_of(cb.function(replicas=(0, 4), devices=("cuda:0", "cuda:1"))(fn), "fn")
    assert route.describe()["devices"] == ["cuda:0", "cuda:1"]
