"""What the package may take: the modules that an import loads, and the public parts of other packages."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from node import ENVIRONMENT

SOURCE = Path(__file__).parents[1] / "src/callboard"
# Modules for commands only, and for evaluations of other people's code.
TOOLS = {"conformance", "describe", "doctor", "fork_server", "hooks", "mar", "prepare", "relay"}
# The packages whose private parts have been used here, and were renamed.
OTHERS = {"httpcore", "httpx"}


@pytest.mark.parametrize(("module", "most"), [("callboard", 62), ("callboard.worker", 69)])
def test_an_import_loads_no_tool_and_no_optional_package(module: str, most: int) -> None:
    code = f"import json, sys, {module}; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", code], env=ENVIRONMENT, text=True))
    own = {name for name in loaded if name.partition(".")[0] == "callboard"}
    assert not {name for name in own if name.split(".")[1:2] and name.split(".")[1] in TOOLS}
    assert len(own) <= most, sorted(own)
    optional = {"PIL", "anyio", "attr", "attrs", "httpcore", "httpx", "pandas", "polars", "pyarrow", "pydantic"}
    optional |= {"soundfile", "torch"}
    assert not optional & {name.partition(".")[0] for name in loaded}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_public_parts_of_the_http_packages_are_used(path: Path) -> None:
    assert list(private_parts(path.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "import httpx._client",
        "from httpcore._sync import http11",
        "from httpcore import _backends",
        "x = client._transport",
        "self._client._transport = None",
        "self._transport.x",
        "setattr(client, '_transport', 1)",
    ],
)
def test_a_private_part_is_found(line: str) -> None:
    code = f"import httpx\nclass A(httpx.BaseTransport):\n  def f(self, client):\n    self._client = 1\n    {line}\n"
    assert len(list(private_parts(code))) == 1


def test_no_module_of_the_package_can_read_a_pickle() -> None:
    """Neither imports what does, nor allows NumPy to."""
    forbidden = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not forbidden & {name.partition(".")[0] for name in names}, (file, node.lineno)
            assert not (isinstance(node, ast.keyword) and node.arg == "allow_pickle"), (file, node.lineno)


def private_parts(code: str) -> Iterator[str]:
    """The private names in a module with one of these packages that are not its own."""
    tree = ast.parse(code)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported |= {f"{node.module}.{alias.name}" for node in froms for alias in node.names}
    foreign = {name for name in imported if name.partition(".")[0] in OTHERS}
    yield from (name for name in foreign if any(part.startswith("_") for part in name.split(".")))
    if not foreign:
        return
    own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            own.add(node.attr)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not (is_self(node.value) and node.attr in own):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            yield from (
                ast.unparse(node) for each in node.args if isinstance(each, ast.Constant) and is_private(each.value)
            )


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")
