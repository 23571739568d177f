"""Says what an interpreter lacks for an app: `python -m callboard.doctor TARGET [VERSION]`, one line for each thing.

A line begins with `ok: ` or `problem: `, and a problem ends with its cure. Below a syntax error is its line. The app is
read, not imported: an import ends at the first module that is missing.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import platform
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from callboard._target import split
from callboard._version import __version__

# Modules whose package has another name.
_PACKAGES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "sentence_transformers": "sentence-transformers",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
_LEAST = (3, 10)
# The latest CUDA that the driver runs, if there is one.
CUDA = "_CALLBOARD_DRIVER_CUDA"
_USAGE = "usage: python -m callboard.doctor TARGET [VERSION], such as app.py"


def examine(target: str, version: str | None) -> Iterator[str]:
    """Looks at the interpreter, the package, and the modules that the app imports."""
    own = f"{sys.executable} (Python {platform.python_version()})"
    if sys.version_info < _LEAST:
        yield f"problem: {own} is too old; install Python {_LEAST[0]}.{_LEAST[1]} or later"
    else:
        yield f"ok: the interpreter is {own}"
    if version is None or version == __version__:
        yield f"ok: the package callboard {__version__}"
    else:
        cure = f"{sys.executable} -m pip install PATH/TO/callboard/python of version {version}"
        yield f"problem: the package callboard is {__version__}, and the program {version}; {cure}"
    source, _ = split(target)
    file = Path(source) if source.endswith(".py") else _file_of(source)
    if file is None or not file.is_file():
        what = "file" if file else "module"
        yield f"problem: there is no {what} {source}; name an existing one"
        return
    source = str(file)
    sys.path.insert(0, str(file.absolute().parent))
    names: dict[str, None] = {}
    try:
        _gather(file, names, set())
    except SyntaxError as error:
        yield f"problem: {source}, line {error.lineno}: {error.msg}; correct it"
        _, *marked, _ = traceback.format_exception_only(type(error), error)
        yield from (line.rstrip() for line in marked)
        return
    yield from _of_engines(names)
    missing = [name for name in names if not _is_there(name)]
    if not missing:
        yield f"ok: {source} finds its {len(names)} module{'s' * (len(names) != 1)}"
        return
    packages = " ".join(map(package_of, missing))
    listed = file.parent / "requirements.txt"
    cure = f"-r {os.path.relpath(listed)}" if listed.is_file() else packages
    word = "module" if len(missing) == 1 else "modules"
    yield f"problem: {source} lacks the {word} {', '.join(missing)}; {sys.executable} -m pip install {cure}"


def _of_engines(names: Iterable[str]) -> Iterator[str]:
    """Whether the driver runs the CUDA of PyTorch, and what ONNX Runtime can run on, if the app imports them."""
    driver, toolkit = os.environ.get(CUDA), _cuda_of_torch() if "torch" in names else None
    if driver and toolkit:
        latest = driver.partition(".")[0]
        if int(toolkit.partition(".")[0]) > int(latest):
            cure = f"install a newer driver, or a torch for CUDA {latest}"
            yield f"problem: torch is built for CUDA {toolkit}, and the driver runs CUDA up to {driver}; {cure}"
        else:
            yield f"ok: torch is built for CUDA {toolkit}"
    if "onnxruntime" in names and _is_there("onnxruntime"):
        onnxruntime = importlib.import_module("onnxruntime")
        yield f"ok: onnxruntime {onnxruntime.__version__} has {', '.join(onnxruntime.get_available_providers())}"


def _cuda_of_torch() -> str | None:
    """The CUDA that the installed PyTorch was built for, as its package tells."""
    try:
        version, needs = metadata.version("torch"), metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        return None
    if local := re.search(r"\+cu(\d+)(\d)$", version):
        return f"{local[1]}.{local[2]}"
    found = (re.match(r"nvidia-cuda-runtime(?:-cu\d+)?\s*==\s*(\d+\.\d+)", need) for need in needs)
    return next((need[1] for need in found if need), None)


def _file_of(module: str) -> Path | None:
    """The file of a module, which is not imported, though the packages around it are."""
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(os.path.relpath(found.origin)) if found and found.origin else None


def package_of(module: str) -> str:
    """The package that most probably has a module."""
    return _PACKAGES.get(module, module)


def _gather(file: Path, names: dict[str, None], seen: set[Path]) -> None:
    """The names of all modules that a file imports, and the files beside it that it imports."""
    seen.add(file)
    for name in _imports(ast.parse(file.read_bytes(), str(file))):
        names.setdefault(name)
        beside = file.with_name(f"{name}.py")
        if beside.is_file() and beside not in seen:
            _gather(beside, names, seen)


def _imports(tree: ast.AST) -> Iterator[str]:
    """The first names of imports. An import inside of `try` may fail."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]
        elif not isinstance(node, ast.Try):
            yield from _imports(node)


def _is_there(name: str) -> bool:
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def asks_for_help(arguments: list[str]) -> bool:
    return any(argument in ("-h", "--help") for argument in arguments)


def main(arguments: list[str]) -> int:
    if asks_for_help(arguments):
        print(_USAGE)
        return 0
    if not 1 <= len(arguments) <= 2:
        print(_USAGE, file=sys.stderr)
        return 2
    for line in examine(arguments[0], arguments[1] if len(arguments) == 2 else None):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
