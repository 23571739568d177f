"""`cb.run`: with a stand-in for the program, which prints how it was called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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


def script(directory: Path, code: str, *command: str) -> tuple[int, str, str]:
    program = directory / "bin" / "callboard"
    program.parent.mkdir(exist_ok=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (directory / "app.py").write_text(APP + code)
    environment = {**ENVIRONMENT, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    arguments = [sys.executable, *(command or ("app.py",))]
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
    assert environment == sys.prefix or path.startswith(os.path.dirname(sys.executable))


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
    assert "the program `callboard` is not on PATH" in errors


def test_a_session_without_a_file_serves_one_and_goes_on(tmp_path: Path) -> None:
    status, printed, errors = script(tmp_path, "", "-c", "import callboard as cb; cb.run('app.py'); print('after')")
    assert status == 0 and printed.endswith("after\n") and '"serve", "app.py"' in printed, errors
