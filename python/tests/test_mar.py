"""Model archives: what is refused, and that nothing of it stays."""

from __future__ import annotations

import json
import random
import shutil
import stat
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
from node import ENVIRONMENT

from callboard._context import Context
from callboard._exceptions import HTTPException
from callboard.mar import ArchiveError, Handler
from callboard.mar._manifest import MANIFEST
from callboard.mar.archive import unpack

MODEL = {"modelName": "noop", "handler": "noop:handle"}
CODE = """
open("touched", "w").close()

def handle(data, context):
    if data is None:
        return None
    if data[0]["body"] == "bad":
        context.set_response_status(418, "a teapot", 0)
    return [row["body"] for row in data]
"""


def archive(path: Path, files: dict[Any, str | bytes] | None = None, model: dict[str, Any] | None = None) -> Path:
    with zipfile.ZipFile(path / "noop.mar", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(MANIFEST, json.dumps({"model": model or MODEL}))
        for name, data in (files if files is not None else {"noop.py": CODE}).items():
            file.writestr(name, data)
    return path / "noop.mar"


def test_the_page_shows_the_app_of_an_archive(tmp_path: Path) -> None:
    model = {"modelName": "reviews", "handler": "noop:handle"}
    unpack(archive(tmp_path, model=model), tmp_path / "reviews")
    page = Path(__file__).parents[2] / "docs/migrate/torchserve.md"
    assert f"```python\n{(tmp_path / 'reviews/app.py').read_text()}```\n" in page.read_text()


def test_an_archive_becomes_a_directory_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert unpack(archive(tmp_path), tmp_path / "out") == "noop"
    assert not (tmp_path / "touched").exists(), "its code has run"
    assert 'route="/predictions/noop"' in (tmp_path / "out/app.py").read_text()
    monkeypatch.setattr(sys, "path", list(sys.path))
    handler = Handler(tmp_path / "out/model", "cuda:1")
    assert handler([{"x": 1}]) == [{"x": 1}]
    (teapot,) = handler(["bad"])
    assert isinstance(teapot, HTTPException) and teapot.status_code == 418


@pytest.mark.parametrize("handler", ["classy.py", "classy", "/home/me/classy.py"])
def test_a_class_is_initialised_and_handles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: str) -> None:
    """The forms of a handler that the archiver of TorchServe writes."""
    code = """
class Classy:
    def initialize(self, context):
        self.name = context.model_name

    def handle(self, data, context):
        return [self.name] * len(data)
"""
    made = archive(tmp_path, {"classy.py": code}, {"modelName": "classy", "handler": handler})
    unpack(made, tmp_path / "out")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "classy", raising=False)
    run = Handler(tmp_path / "out/model")
    assert run([1, 2]) == ["classy", "classy"]
    monkeypatch.setattr(run, "_call", lambda data, context: data[1:])
    with pytest.raises(TypeError, match="gives a list of 1, and not a list of 2"):
        run([1, 2])


def test_a_form_and_the_request_ids_reach_the_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in TorchServe, a file of a form has the name of its field, and any other body is `body`."""
    code = """
def handle(data, context):
    if data is None:
        return None
    return [[context.get_request_id(i), sorted(row), row.get("data") or row["body"]] for i, row in enumerate(data)]
"""
    unpack(archive(tmp_path, {"forms.py": code}, {"modelName": "forms", "handler": "forms:handle"}), tmp_path / "out")
    monkeypatch.setattr(sys, "path", list(sys.path))
    run = Handler(tmp_path / "out/model")
    bodies = [{"data": b"a picture", "size": "3"}, {"data": 1}, b"a picture"]
    contexts = [Context(request_id=f"r-{i}") for i in range(3)]
    assert run(bodies, contexts) == [
        ["r-0", ["data", "size"], b"a picture"], ["r-1", ["body"], {"data": 1}], ["r-2", ["body"], b"a picture"],
    ]  # fmt: skip


def link() -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo("noop.py")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"../evil.py": ""}, "'../evil.py': the name of a file must be a plain relative path"),
        ({"a/../../evil.py": ""}, "plain relative path"),
        ({"/evil.py": ""}, "plain relative path"),
        ({"a\\..\\evil.py": ""}, "plain relative path"),
        ({"c:evil.py": ""}, "plain relative path"),
        ({"./noop.py": ""}, "plain relative path"),
        ({link(): "/etc/passwd"}, "no links"),
        ({"noop.py": "", "NOOP.py": ""}, "two files have this name"),
        ({"noop.py": "", "noop.py/x": ""}, "'noop.py/x': "),
        ({"noop.py": bytes(2000)}, "bytes unpacked: the limit is 1500 (max_bytes, --max-bytes)"),
        (
            {"noop.py": "", "a": "", "b": "", "c": ""},
            "5 files and directories: the limit is 4 (max_files, --max-files)",
        ),
        ({}, "the archive has no noop.py; handlers of the server itself are not part of it"),
    ],
)
def test_a_bad_archive_is_refused_and_leaves_nothing(tmp_path: Path, files: dict[Any, Any], message: str) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(ArchiveError) as raised:
        unpack(archive(tmp_path / "in", files), tmp_path / "out/model", max_bytes=1500, max_files=4)
    assert message in str(raised.value)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["noop.mar"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"modelName": "a/b", "handler": "noop"}, "model.modelName: letters, digits"),
        ({"modelName": 'a"', "handler": "noop"}, "model.modelName: letters, digits"),
        ({"modelName": "noop"}, "model.handler must be a text"),
        ({"modelName": "noop", "handler": "image_classifier"}, "the archive has no image_classifier.py"),
        ({"modelName": "noop", "handler": "../"}, "the archive has no .py"),
        (MODEL | {"serializedFile": "/etc/passwd"}, "model.serializedFile must be a plain relative path"),
        (MODEL | {"modelFile": "a/../../model.py"}, "model.modelFile must be a plain relative path"),
        (MODEL | {"requirementsFile": "c:\\requirements.txt"}, "model.requirementsFile must be a plain relative path"),
        (MODEL | {"configFile": 7 * "../"}, "model.configFile must be a plain relative path"),
    ],
)
def test_the_manifest_is_checked(tmp_path: Path, model: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchiveError) as raised:
        unpack(archive(tmp_path, model=model), tmp_path / "out")
    assert message in str(raised.value)


def test_an_entry_is_never_read_beyond_the_size_that_it_declares(tmp_path: Path) -> None:
    """A bomb that claims to be small."""
    made = archive(tmp_path, {"noop.py": bytes(10_000_000)})
    whole = bytearray(made.read_bytes())
    whole = whole.replace((10_000_000).to_bytes(4, "little"), (1000).to_bytes(4, "little"))
    made.write_bytes(whole)
    with pytest.raises(ArchiveError, match="noop"):
        unpack(made, tmp_path / "out", max_bytes=5000)


def test_the_limits_can_be_raised_at_the_command_line(tmp_path: Path) -> None:
    made = archive(tmp_path, {"noop.py": CODE})
    command = [sys.executable, "-m", "callboard.mar", str(made), str(tmp_path / "out"), "--max-files"]
    done = subprocess.run([*command, "1"], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 1 and "2 files and directories: the limit is 1 (max_files, --max-files)" in done.stderr
    assert subprocess.run([*command, "3"], capture_output=True, env=ENVIRONMENT).returncode == 0


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "noop.mar").write_bytes(b"PK nothing")
    with pytest.raises(ArchiveError, match="not a zip file"):
        unpack(tmp_path / "noop.mar", tmp_path / "out")
    whole = archive(tmp_path).read_bytes()
    (tmp_path / "noop.mar").write_bytes(whole.replace(CODE.encode()[:8], b"x"))
    damaged = bytearray(whole)
    damaged[60:70] = bytes(10)
    (tmp_path / "noop.mar").write_bytes(damaged)
    with pytest.raises(ArchiveError):
        unpack(tmp_path / "noop.mar", tmp_path / "out")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_only_stored_and_deflated_files_are_unpacked(tmp_path: Path, method: int) -> None:
    """The others are unpacked as a whole, whatever size they declare."""
    made = archive(tmp_path, {"noop.py": CODE})
    with zipfile.ZipFile(made, "a") as file:
        file.writestr(zipfile.ZipInfo("zeros"), bytes(64 << 20), method)
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveError, match=f"'zeros': compressed by method {method}: only stored and deflated"):
            unpack(made, tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("declared", [10, 2000])
def test_a_file_of_another_size_than_it_declares_is_refused(tmp_path: Path, declared: int) -> None:
    made = archive(tmp_path, {"noop.py": CODE, "data": "x" * 1000})
    raw = made.read_bytes()
    # In the central directory: the size before the lengths of a name of four bytes.
    place = raw.rindex(b"data") - 46 + 24
    made.write_bytes(raw[:place] + declared.to_bytes(4, "little") + raw[place + 4 :])
    with pytest.raises(ArchiveError):
        unpack(made, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_directories_are_counted_as_files_are(tmp_path: Path) -> None:
    named = {f"{'/'.join('abcdefgh')}{n}/x": "" for n in range(10)}
    for files in ({"noop.py": CODE, **named}, {"noop.py": CODE, **{f"d{n}/": "" for n in range(30)}}):
        made = archive(tmp_path, files)
        with pytest.raises(ArchiveError, match=r"files and directories: the limit is 28 \(max_files, --max-files\)"):
            unpack(made, tmp_path / "out", max_files=28)
        assert unpack(made, tmp_path / "out", max_files=35) == "noop"
        shutil.rmtree(tmp_path / "out")
    with pytest.raises(ArchiveError, match="at most 32 parts"):
        unpack(archive(tmp_path, {"noop.py": CODE, "a/" * 40 + "x": ""}), tmp_path / "out")


def test_a_damaged_archive_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    good = archive(tmp_path, {"noop.py": CODE, "data/x.bin": bytes(2000)}).read_bytes()
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(150):
        bad = bytearray(good)
        for _ in range(chance.choice((1, 2, 8))):
            bad[chance.randrange(len(bad))] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        (tmp_path / "bad.mar").write_bytes(bad)
        try:
            unpack(tmp_path / "bad.mar", tmp_path / "out", max_bytes=1 << 20)
            shutil.rmtree(tmp_path / "out")
        except ArchiveError:
            assert not (tmp_path / "out").exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bad.mar", "noop.mar"]
