"""Where an installation may be: an environment that moves, two versions at once, no place to write, an old system."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import types
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from node import PROGRAM

import callboard as cb

LIMIT = 120
APP = """
import sys
import callboard as cb

@cb.function
def where(a: int) -> list[str]:
    return [cb.__version__, sys.prefix]

@cb.function
def length(text: str) -> int:
    return len(text)
"""
# A namespace of mounts of its own, as root of a namespace of users of its own.
OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
READ_ONLY = {
    "root": 'mount -o remount,bind,ro / && exec "$@"',
    "anywhere": """
        cut -d' ' -f2 /proc/self/mounts | while read -r place; do mount -o remount,bind,ro "$place" 2> /dev/null; done
        ! touch /dev/shm/place "$TMPDIR/place" 2> /dev/null && exec "$@"
    """,
}
REPOSITORY = Path(__file__).parents[2]
needs_program = pytest.mark.skipif(PROGRAM is None, reason="the program `callboard` is not built")


def install(environment: Path, version: str = cb.__version__) -> None:
    """What a wheel installs; its dependencies are those of the tests."""
    assert PROGRAM is not None and cb.__file__ is not None
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python3*/site-packages")
    shutil.copytree(Path(cb.__file__).parent, packages / "callboard", ignore=shutil.ignore_patterns("__pycache__"))
    (packages / "callboard/_version.py").write_text(f'__version__ = "{version}"\n')
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    # Not a symbolic link: the program looks for the environment that it lies in.
    program = environment / "bin/callboard"
    try:
        os.link(PROGRAM, program)
    except OSError:
        shutil.copy(PROGRAM, program)


def variables(directory: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(directory), "TMPDIR": str(directory)}


@contextlib.contextmanager
def serving(environment: Path, wrapped: Sequence[str] = ()) -> Iterator[str]:
    """A node of this environment with its address; it ends in order."""
    app = environment.parent / "app.py"
    app.write_text(APP)
    command = [*wrapped, environment / "bin/callboard", "serve", app, "--http", "127.0.0.1:0", "--admin", "off"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=variables(app.parent), **options) as node:
        assert node.stdout is not None
        seen = []
        try:
            for line in node.stdout:
                seen.append(line)
                if found := re.search(r"http://(127\.0\.0\.1:\d+)", line):
                    yield found[1]
                    break
            else:
                raise AssertionError("".join(seen))
        finally:
            node.terminate()
        rest = node.stdout.read()
        assert node.wait(LIMIT) == 0, rest


def call(address: str, route: str, value: object) -> object:
    connection = http.client.HTTPConnection(address, timeout=LIMIT)
    try:
        connection.request("POST", route, json.dumps(value), {"content-type": "application/json"})
        answer = connection.getresponse()
        body = json.loads(answer.read())
        assert answer.status == 200, body
        return body
    finally:
        connection.close()


def in_python(environment: Path, code: str, wrapped: Sequence[str] = ()) -> str:
    command = [*wrapped, environment / "bin/python", "-c", code]
    found = subprocess.run(command, env=variables(environment.parent), capture_output=True, text=True, timeout=LIMIT)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@needs_program
def test_an_environment_that_has_moved_serves_with_its_own_interpreter(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    install(before)
    before.rename(after)
    with serving(after) as address:
        assert call(address, "/where", 1) == [cb.__version__, str(after)]
    program = "import callboard._run as run; print(run.program())"
    assert in_python(after, program) == str(after / "bin/callboard")


@needs_program
def test_two_versions_serve_side_by_side_and_call_each_other(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    install(one)
    install(two, "99.0.0")
    with serving(one) as first, serving(two) as second:
        assert call(first, "/where", 1) == [cb.__version__, str(one)]
        assert call(second, "/where", 1) == ["99.0.0", str(two)]
        ask = "import callboard as cb; print(cb.Client('http://{}').call('/where', 1))"
        assert in_python(one, ask.format(second)) == str(["99.0.0", str(two)])
        assert in_python(two, ask.format(first)) == str([cb.__version__, str(one)])


@needs_program
@pytest.mark.parametrize("where", READ_ONLY)
def test_a_node_and_a_client_need_no_place_to_write(tmp_path: Path, where: str) -> None:
    wrapped = [*OWN_MOUNTS, READ_ONLY[where], "sh"]
    with contextlib.suppress(FileNotFoundError):
        if subprocess.run([*wrapped, "true"], env=variables(tmp_path), capture_output=True).returncode == 0:
            install(tmp_path / "environment")
            with serving(tmp_path / "environment", wrapped) as address:
                # More than fits in a socket at once goes through shared memory.
                assert call(address, "/length", "x" * (1 << 20)) == 1 << 20
                ask = f"import callboard as cb; print(cb.Client('http://{address}').call('/length', 'abc'))"
                assert in_python(tmp_path / "environment", ask, wrapped) == "3"
            return
    pytest.skip("this system lets no user have mounts of their own")


@pytest.mark.parametrize(("glibc", "is_taken"), [("2_27", False), ("2_28", True), ("2_39", True)])
def test_an_older_glibc_than_that_of_the_wheel_is_refused_by_pip(tmp_path: Path, glibc: str, is_taken: bool) -> None:
    promised = re.search(r"^glibc=(\d+)\.(\d+)$", (REPOSITORY / ".ci/wheel").read_text(), re.MULTILINE)
    assert promised and promised.groups() == ("2", "28")
    wheel = tmp_path / "callboard-0.1.0-cp310-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        information = "callboard-0.1.0.dist-info"
        file.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: callboard\nVersion: 0.1.0\n")
        file.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nTag: cp310-abi3-manylinux_2_28_x86_64\n")
        file.writestr(f"{information}/RECORD", "")
    # pip takes what the system can run, the newest glibc first.
    systems = [f"--platform=manylinux_2_{minor}_x86_64" for minor in range(int(glibc[2:]), 16, -1)]
    options = [
        "--no-index",
        "--no-deps",
        "--only-binary=:all:",
        f"--find-links={tmp_path}",
        f"--dest={tmp_path / 'got'}",
    ]
    found = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", *options, *systems, "callboard"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    if "No module named pip" in found.stderr:
        pytest.skip("needs pip")
    assert (found.returncode == 0) == is_taken, found.stderr
    assert is_taken or "No matching distribution found for callboard" in found.stderr


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What builds wheels."""
    pytest.importorskip("packaging.tags")
    name = "hatchling"
    for part in ("", ".builders", ".hooks", ".plugin", ".interface"):
        name += part
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules[name], "BuildHookInterface", object, raising=False)
    return runpy.run_path(str(REPOSITORY / "python/hatch_build.py"))


def test_pip_without_a_wheel_for_this_system_says_that_it_needs_cargo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: dict[str, Any]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"needs cargo: install Rust .*, or take a wheel"):
        hook["_built"](tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="files for macOS are signed")
def test_a_wheel_has_no_names_for_debuggers_where_strip_knows_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: dict[str, Any]
) -> None:
    file, strip, place = tmp_path / "callboard", tmp_path / "strip", tmp_path / "place"
    file.write_text("long")
    place.mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hook["_small"](file, place) == file
    for status, found in ((0, place / "callboard"), (1, file)):
        strip.write_text(f"#!/bin/sh\necho short > $3\nexit {status}\n")
        strip.chmod(0o755)
        assert hook["_small"](file, place) == found
    assert (file.read_text(), (place / "callboard").read_text()) == ("long", "short\n")
