"""Does what a page of the documentation says, word by word, and compares what it shows: `pages.py callboard page.md`.

In the order of the page, in an empty directory:

* A block with a title, or a block `python` with `# name.py` as its first line, is a file, and is written. Any other
  block `python` is a program, and runs.
* A block `text` is what the program before it prints.
* A block `console` has commands after `$`, each with its output; one without must only succeed. `callboard serve`, or a
  program with `cb.run`, runs until the next one starts; its addresses are used wherever the page says `localhost:8000`,
  `localhost:50051` and `localhost:8001`.
* Blocks in other languages are only shown.

A page with a comment such as `<!-- needs torch -->` is skipped where no module and no program is called so. One that shows no output
says so: `<!-- only commands -->`.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

LIMIT = 120
FRACTION = re.compile(r"-?\d+\.\d+")
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class Reader:
    """Follows one page."""

    def __init__(self, callboard: str, directory: str) -> None:
        self.callboard = callboard
        self.directory = directory
        self.server: subprocess.Popen[str] | None = None
        self.addresses = {"localhost:8000": "localhost:8000", "localhost:8001": "localhost:8001"}
        self.checked = 0
        self.compared = 0

    def follow(self, page: str) -> None:
        printed = ""
        # Examples are files of the repository, from which this program runs.
        page = re.sub(r"(?<=[ @])examples/", f"{os.getcwd()}/examples/", page)
        for language, title, text in BLOCK.findall(page):
            name = re.match(r"# (\w+\.py)\n", text)
            title = title or (name[1] if name else "")
            if title:
                Path(self.directory, title).write_text(self.addressed(text))
            elif language == "python":
                printed = self.run([sys.executable, "-c", self.addressed(text)])
            elif language == "text":
                self.compare(printed, text)
            elif language == "console":
                for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                    self.command(command, expected)

    def command(self, command: str, expected: str) -> None:
        if command.startswith("callboard serve ") or self.is_server(command):
            self.serve(command)
        else:
            printed = self.run(["sh", "-c", self.addressed(command)])
            if expected:
                self.compare(printed.rstrip("\n") + "\n", expected)
            else:
                self.checked += 1

    def addressed(self, text: str) -> str:
        """The text with the addresses of the running server."""
        for said, real in self.addresses.items():
            text = text.replace(said, real)
        return text

    def is_server(self, command: str) -> bool:
        """Whether a program becomes the server."""
        program = Path(self.directory, command.removeprefix("python "))
        return command.startswith("python ") and program.is_file() and "cb.run(" in program.read_text()

    def compare(self, printed: str, expected: str) -> None:
        assert is_same(printed, expected), f"the page says:\n{expected}\nand this is printed:\n{printed}"
        self.checked += 1
        self.compared += 1

    def run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=self.directory, env=self.environment(), capture_output=True, text=True, timeout=LIMIT
        )
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def environment(self) -> dict[str, str]:
        """Both programs are found, and what a page prepares is kept in its own directory."""
        programs = (os.path.dirname(os.path.abspath(self.callboard)), os.path.dirname(sys.executable))
        return {
            **os.environ,
            "PATH": os.pathsep.join((*programs, os.environ["PATH"])),
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_CACHE_HOME": os.path.join(self.directory, ".cache"),
        }

    def serve(self, command: str) -> None:
        self.stop()
        environment = {**self.environment(), "CALLBOARD_HTTP": "127.0.0.1:0", "CALLBOARD_ADMIN": "127.0.0.1:0"}
        self.server = subprocess.Popen(
            command.split(), cwd=self.directory, env=environment, stderr=subprocess.PIPE, text=True
        )
        # A server that prints nothing is killed, and its output ends.
        timer = threading.Timer(LIMIT, self.server.kill)
        timer.start()
        lines = []
        for line in self.server.stderr or ():
            lines.append(line)
            if found := re.search(r"listening on http://(\S+)", line):
                self.addresses["localhost:8000"] = self.addresses["localhost:50051"] = found[1]
            if found := re.search(r"admin on http://(\S+)", line):
                self.addresses["localhost:8001"] = found[1]
                break
        else:
            raise AssertionError(f"{command} does not listen:\n{''.join(lines)}")
        timer.cancel()
        # What it prints later must not fill the pipe.
        threading.Thread(target=self.server.communicate, daemon=True).start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()


def is_same(printed: str, expected: str) -> bool:
    """Whether two outputs are equal, but for one unit in the last place of a fraction: it depends on the processor."""
    if FRACTION.sub("", printed) != FRACTION.sub("", expected):
        return False
    pairs = zip(FRACTION.findall(printed), FRACTION.findall(expected), strict=True)
    return all(abs(float(one) - float(other)) < 1.01 / 10 ** len(other.partition(".")[2]) for one, other in pairs)


def main(callboard: str, page: str) -> None:
    path, _, heading = page.partition("#")
    text = Path(path).read_text()
    if heading:
        (text,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    needed = re.search(r"^<!-- needs (\w+) -->$", text, re.MULTILINE)
    if needed and importlib.util.find_spec(needed[1]) is None and shutil.which(needed[1]) is None:
        print(f"skipped {page}: it needs {needed[1]}")
        return
    with tempfile.TemporaryDirectory() as directory:
        reader = Reader(callboard, directory)
        try:
            reader.follow(text)
        finally:
            reader.stop()
    compares = reader.compared or "<!-- only commands -->" in text
    assert reader.checked and compares, f"{page} compares nothing"
    print(f"{page}: {reader.checked} outputs and commands are as the page says")


if __name__ == "__main__":
    main(*sys.argv[1:])
