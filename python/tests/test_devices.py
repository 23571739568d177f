"""Replicas on devices: what each of them sees. A real node runs them; the devices are names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from node import ENVIRONMENT, HERE, PROGRAM

import callboard as cb
from callboard import doctor
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
    seen = placed(tmp_path, monkeypatch, 'devices=["cuda:1", "cpu"]', CUDA_VISIBLE_DEVICES="0,MIG-8f")
    assert seen == {("cuda:0", "MIG-8f", None), ("cpu", "0,MIG-8f", None)}


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


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """A library in the place of NVML. Given "2 1" it tells of two devices, of which the second is lost."""
    compiler, state = shutil.which("cc"), tmp_path / "state"
    if compiler is None:
        pytest.skip("no C compiler")
    command = [compiler, "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(HERE / "fake_nvml.c")]
    subprocess.run(command, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_NVML", str(state))

    def tell(text: str) -> None:
        # Whole at any time.
        state.with_suffix(".new").write_text(text)
        state.with_suffix(".new").replace(state)

    tell("2 -1")
    return tell


def until(what: str, is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def test_all_devices_are_those_that_nvml_tells_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Callable[[str], object]
) -> None:
    seen = placed(tmp_path, monkeypatch, 'devices="auto"')
    assert seen == {("cuda:0", "0", None), ("cuda:0", "1", None)}


@pytest.mark.parametrize("names", [("0", "1"), ("GPU-fake-0", "GPU-fake-1")])
def test_a_lost_device_costs_its_replica_alone_which_comes_back_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Callable[[str], object], names: tuple[str, str]
) -> None:
    assert PROGRAM is not None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(names))
    monkeypatch.setenv("PATH", str(Path(PROGRAM).parent), prepend=os.pathsep)
    (tmp_path / "placed.py").write_text(APP.format(options='devices="auto"'))
    with cb.start(str(tmp_path / "placed.py")) as node:
        client = node.client()

        def metrics() -> str:
            page: bytes = urllib.request.urlopen(f"{node.url}/metrics", timeout=30).read()
            return page.decode()

        page = metrics()
        assert 'callboard_device_memory_used_bytes{device="1",name="Fake 1"} 10737418240' in page, page
        assert 'callboard_device_utilisation_ratio{device="0",name="Fake 0"} 0.25' in page, page
        nvml("2 1")
        until("its replica has ended", lambda: 'callboard_stage_replicas{stage="placed"} 1\n' in metrics())
        assert 'callboard_device_lost{device="1",name=""} 1' in metrics()
        for _ in range(8):
            assert client.call("/placed", {})[1] == names[0]
        nvml("2 -1")
        until("it is back", lambda: 'callboard_stage_replicas{stage="placed"} 2\n' in metrics())
        assert {tuple(seen)[1] for seen in client.map("/placed", [{}] * 32, in_flight=8)} == set(names)


def test_the_doctor_lists_devices_with_their_driver_and_tells_of_one_that_is_lost(
    tmp_path: Path, nvml: Callable[[str], object]
) -> None:
    assert PROGRAM is not None
    (tmp_path / "placed.py").write_text(APP.format(options='devices="auto"'))
    nvml("2 1")
    environment = {**os.environ, "PYTHONPATH": ENVIRONMENT["PYTHONPATH"], "VIRTUAL_ENV": sys.prefix}
    command = [PROGRAM, "doctor", "placed.py", "--http", "127.0.0.1:0"]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "ok: the driver 550.54.15 runs CUDA up to 12.4\n" in found.stdout, found
    assert "ok: device 0 is Fake 0, with 10240 of 81920 MiB of memory in use\n" in found.stdout
    assert found.returncode == 1 and "problem: device 1 is lost" in found.stdout


@pytest.mark.parametrize(
    ("version", "needs", "line"),
    [
        ("2.9.0+cu130", [], "problem: torch is built for CUDA 13.0, and the driver runs CUDA up to 12.4; "),
        (
            "2.9.0",
            ["numpy", "nvidia-cuda-runtime-cu12==12.8.90; platform_system == 'Linux'"],
            "ok: torch is built for ",
        ),
    ],
)
def test_the_doctor_tells_of_a_driver_that_is_older_than_the_toolkit(
    monkeypatch: pytest.MonkeyPatch, version: str, needs: list[str], line: str
) -> None:
    monkeypatch.setenv(doctor.CUDA, "12.4")
    monkeypatch.setattr(doctor.metadata, "version", {"torch": version}.__getitem__)
    monkeypatch.setattr(doctor.metadata, "requires", {"torch": needs}.__getitem__)
    (found,) = doctor._of_engines(["torch"])
    assert found.startswith(line)


def test_the_check_of_gpus_says_that_there_is_none_and_does_the_rest_without() -> None:
    script = Path(__file__).parents[2] / "benches/gpus.py"

    def run(*arguments: str) -> str:
        command = [sys.executable, str(script), str(PROGRAM), *arguments]
        found = subprocess.run(
            command, env={**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found
        return found.stdout

    assert run().startswith("gpus: no GPU (") and run().count("\n") == 1
    assert "2 x CPU\n" in (dry := run("--dry")) and "largest batch that found memory: 2.0\n" in dry, dry
