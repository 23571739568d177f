"""`cb.run`: with a stand-in for the program, which prints how it was called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from node import ENVIRONMENT, TIMEOUT_SECONDS

PROGRAM = f"""#!{sys.executable}
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ.get("VIRTUAL_ENV"), os.environ["PATH"]]))
"""
APP = """
import callboard as cb

@cb.function
def add(a: int) -> int:
    return a

both = cb.pipeline(add, add)
"""


@pytest.fixture(scope="module", autouse=True)
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of an environment without the program, which the environment of these tests may have."""
    directory = tmp_path_factory.getbasetemp() / "environment"
    venv.create(directory, with_pip=False)
    return directory / "bin" / "python"


def stand_in(directory: Path, text: str = PROGRAM) -> None:
    program = directory / "callboard"
    program.parent.mkdir(exist_ok=True)
    program.write_text(text)
    program.chmod(0o755)


def script(directory: Path, code: str, *command: str) -> tuple[int, str, str]:
    stand_in(directory / "bin")
    (directory / "app.py").write_text(APP + code)
    packages = os.pathsep.join((ENVIRONMENT["PYTHONPATH"], sysconfig.get_path("purelib")))
    path = f"{directory / 'bin'}:{os.environ['PATH']}"
    environment = {**ENVIRONMENT, "PATH": path, "PYTHONPATH": packages, "PYTHONNOUSERSITE": "1"}
    # See `interpreter`.
    own = directory.parent / "environment/bin/python"
    arguments = [str(own), *(command or ("app.py",))]
    found = subprocess.run(
        arguments, cwd=directory, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    return found.returncode, found.stdout, found.stderr


def test_a_script_becomes_the_server_with_its_settings(tmp_path: Path) -> None:
    settings = 'http="127.0.0.1:0", reload=True, access_log=False, cors=["a", "b"]'
    code = f'if __name__ == "__main__":\n    cb.run(both, {settings})\n'
    status, printed, errors = script(tmp_path, code)
    assert status == 0, errors
    arguments, environment, path = json.loads(printed)
    assert arguments[0] == "serve" and arguments[1].endswith("app.py:both")
    assert arguments[2:] == ["--http=127.0.0.1:0", "--reload", "--access-log=false", "--cors=a,b"]
    assert environment == str(tmp_path.parent / "environment") and path.startswith(str(tmp_path))


def test_all_of_the_script_and_what_it_has_imported(tmp_path: Path) -> None:
    status, printed, _ = script(tmp_path, 'if __name__ == "__main__":\n    cb.run()\n')
    assert (status == 0 and json.loads(printed)[0] == ["serve", "app.py"]) or str(tmp_path) in printed
    (tmp_path / "main.py").write_text("import callboard as cb\nfrom app import add\ncb.run(add)\n")
    _, printed, errors = script(tmp_path, "", "main.py")
    assert json.loads(printed)[0][1].endswith("app.py:add"), errors


def test_mistakes_are_named(tmp_path: Path) -> None:
    _, _, errors = script(tmp_path, "cb.run()\n", "-m", "callboard.describe", "app.py")
    assert 'put it under `if __name__ == "__main__":`' in errors
    _, _, errors = script(tmp_path, "cb.run(cb.pipeline(add))\n")
    assert "has no name at the top of" in errors
    _, _, errors = script(tmp_path, "", "-c", "import callboard as cb; cb.run()")
    assert "%%writefile app.py" in errors
    _, _, errors = script(tmp_path, "import os\nos.environ['PATH'] = ''\ncb.run()\n")
    assert "the program `callboard` is neither in this environment nor on PATH" in errors


def test_the_module_is_the_program(tmp_path: Path) -> None:
    status, printed, errors = script(tmp_path, "", "-m", "callboard", "serve", "app.py", "--admin=none")
    assert status == 0 and json.loads(printed)[0] == ["serve", "app.py", "--admin=none"], errors
    code = "import os, runpy; os.environ['PATH'] = ''; runpy.run_module('callboard', run_name='__main__')"
    status, _, errors = script(tmp_path, "", "-c", code)
    assert status == 1 and errors.startswith("error: the program `callboard` is neither in this environment"), errors


def test_the_program_of_the_environment_is_before_that_of_the_path(tmp_path: Path, interpreter: Path) -> None:
    stand_in(interpreter.parent, f"#!{sys.executable}\nprint('of the environment')\n")
    try:
        for command in (("-m", "callboard", "serve", "app.py"), ("-c", "import callboard as cb; cb.run('app.py')")):
            assert script(tmp_path, "", *command)[1] == "of the environment\n"
    finally:
        (interpreter.parent / "callboard").unlink()


def test_a_session_without_a_file_serves_one_and_goes_on(tmp_path: Path) -> None:
    status, printed, errors = script(tmp_path, "", "-c", "import callboard as cb; cb.run('app.py'); print('after')")
    assert status == 0 and printed.endswith("after\n") and '"serve", "app.py"' in printed, errors
