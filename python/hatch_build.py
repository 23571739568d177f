"""Puts the `callboard` binary and the extension `callboard._native` into a wheel, with the notices of their crates.

* `WHEEL_NATIVES` names a directory with both: `.ci/wheel` builds a wheel for other machines so.
* Otherwise cargo builds them: in the clone whose root is installed (`WHEEL_SOURCES`, from `build_clone.py`), or in
  `rust/` of a source distribution.
* `WHEEL_PROFILE` is another profile for cargo than `release`, and `WHEEL_PLATFORM` another platform than this one.
* `pip install ./python` in a clone finds neither, and installs the Python part alone, in seconds and without cargo.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

NO_CARGO = "callboard is built from source here, and needs cargo: install Rust (https://rustup.rs), or take a wheel"
LICENCE = re.compile("(?i)(licen[cs]e|copying|notice|unlicense)")


class NativeHook(BuildHookInterface):
    """Adds the two files to a wheel, with its tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        rust = Path(os.environ.get("WHEEL_SOURCES") or Path(self.root, "rust"))
        if self.target_name != "wheel" or version == "editable":
            return
        if not rust.exists():
            return
        natives = os.environ.get("WHEEL_NATIVES")
        directory = Path(natives) if natives else _built(rust)
        # Nothing is written beside the wheel.
        self._place = tempfile.TemporaryDirectory()
        notices = Path(self._place.name, "LICENSE-CRATES")
        notices.write_text(_notices(rust))
        build_data["force_include"][str(notices)] = "callboard/LICENSE-CRATES"
        extension, program = (_small(directory / name, notices.parent) for name in ("_native.abi3.so", "callboard"))
        build_data["force_include"][str(extension)] = "callboard/_native.abi3.so"
        build_data["shared_scripts"][str(program)] = "callboard"
        build_data["pure_python"] = False
        platform = os.environ.get("WHEEL_PLATFORM") or next(platform_tags())
        build_data["tag"] = f"cp310-abi3-{platform}"


def _small(file: Path, place: Path) -> Path:
    """A copy without the names that only debuggers read, a seventh of a wheel; the file itself where no `strip` knows
    it. One for macOS is signed, and stays as it is."""
    strip, small = shutil.which("strip"), place / file.name
    if strip is None or sys.platform != "linux":
        return file
    done = subprocess.run([strip, "--strip-unneeded", "-o", small, file], stderr=subprocess.DEVNULL)
    return small if done.returncode == 0 else file


def _notices(rust: Path) -> str:
    """The licences of the crates that are in the binary or the extension, each text once."""
    _check_cargo()
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    metadata = json.loads(subprocess.check_output(command, cwd=rust))
    crates = {package["id"]: package for package in metadata["packages"]}
    edges = {node["id"]: node["deps"] for node in metadata["resolve"]["nodes"]}
    found: set[str] = set()
    left = [crate for crate, package in crates.items() if package["name"] in ("callboard", "callboard-python")]
    while left:
        crate = left.pop()
        if crate not in found:
            found.add(crate)
            left += [dep["pkg"] for dep in edges[crate] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
    owners: dict[str, set[str]] = {}
    for crate in sorted(found):
        package = crates[crate]
        if package["source"] is not None:
            directory = Path(package["manifest_path"]).parent
            name = f"{package['name']} {package['version']} ({package['license']})"
            files = sorted(file for file in directory.iterdir() if LICENCE.match(file.name) and file.is_file())
            if not files:
                place = package["repository"] or "https://crates.io/crates/" + package["name"]
                owners.setdefault(f"Without a text of its licence: {place}", set()).add(name)
            for file in files:
                owners.setdefault(file.read_text("utf-8", "replace").strip(), set()).add(name)
    rule = "\n\n" + "-" * 80 + "\n\n"
    return rule.join("\n".join([*sorted(names), "", text]) for text, names in owners.items()) + "\n"


def _check_cargo() -> None:
    if shutil.which("cargo") is None:
        raise SystemExit(NO_CARGO)


def _built(rust: Path) -> Path:
    """The directory with both, built by cargo."""
    _check_cargo()
    profile = os.environ.get("WHEEL_PROFILE") or "release"
    packages = ["--package", "callboard", "--package", "callboard-python"]
    command = ["cargo", "build", "--profile", profile, "--locked", "--bin", "callboard", "--lib", *packages]
    subprocess.run(command, cwd=rust, check=True)
    built = rust / (os.environ.get("CARGO_TARGET_DIR") or "target") / ("debug" if profile == "dev" else profile)
    library = next((path for path in map(built.joinpath, ("lib_native.so", "lib_native.dylib")) if path.exists()), None)
    if library is None:
        raise SystemExit(f"cargo has put no lib_native.so and no lib_native.dylib into {built}")
    shutil.copy(library, built / "_native.abi3.so")
    return built
