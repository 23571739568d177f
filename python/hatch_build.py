"""Puts the `callboard` binary and the extension `callboard._native` into a wheel.

* `WHEEL_NATIVES` names a directory with both: `.ci/wheel` builds a wheel for other machines so.
* Otherwise cargo builds them: in the clone whose root is installed (`WHEEL_SOURCES`, from `build_clone.py`), or in
  `rust/` of a source distribution.
* `WHEEL_PROFILE` is another profile for cargo than `release`, and `WHEEL_PLATFORM` another platform than this one.
* `pip install ./python` in a clone finds neither, and installs the Python part alone, in seconds and without cargo.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

NO_CARGO = "callboard is built from source here, and needs cargo: install Rust (https://rustup.rs), or take a wheel"


class NativeHook(BuildHookInterface):
    """Adds the two files to a wheel, with its tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        rust = Path(os.environ.get("WHEEL_SOURCES") or Path(self.root, "rust"))
        if self.target_name != "wheel" or version == "editable":
            return
        if natives := os.environ.get("WHEEL_NATIVES"):
            directory = Path(natives)
        elif rust.exists():
            directory = _built(rust)
        else:
            return
        build_data["force_include"][str(directory / "_native.abi3.so")] = "callboard/_native.abi3.so"
        build_data["shared_scripts"][str(directory / "callboard")] = "callboard"
        build_data["pure_python"] = False
        platform = os.environ.get("WHEEL_PLATFORM") or next(platform_tags())
        build_data["tag"] = f"cp310-abi3-{platform}"


def _built(rust: Path) -> Path:
    """The directory with both, built by cargo."""
    if shutil.which("cargo") is None:
        raise SystemExit(NO_CARGO)
    profile = os.environ.get("WHEEL_PROFILE") or "release"
    packages = ["--package", "callboard", "--package", "callboard-python"]
    command = ["cargo", "build", "--profile", profile, "--locked", "--bin", "callboard", "--lib", *packages]
    subprocess.run(command, cwd=rust, check=True)
    built = Path(os.environ.get("CARGO_TARGET_DIR") or rust / "target", profile)
    library = next(path for path in map(built.joinpath, ("lib_native.so", "lib_native.dylib")) if path.exists())
    shutil.copy(library, built / "_native.abi3.so")
    return built
