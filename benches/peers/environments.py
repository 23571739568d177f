"""A virtual environment for each peer, made once. A copy of its requirements marks it as complete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def environment(directory: Path, requirements: Path) -> Path:
    """The environment with these packages. The interpreter is that of the script, for every peer."""
    place, wanted = directory / requirements.stem, requirements.read_text()
    mark = place / "requirements.txt"
    if not mark.exists() or mark.read_text() != wanted:
        print(f"installing {requirements.stem} …", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        pip = (place / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run([*pip, "-r", requirements], check=True)
        mark.write_text(wanted)
    return place
