"""The build backend of a clone's root: hatchling on this directory, which then finds the Rust sources around it."""

import os
from pathlib import Path

from hatchling.build import *  # noqa: F403

_HERE = Path(__file__).resolve().parent
os.environ["WHEEL_SOURCES"] = str(_HERE.parent)
# A build tool starts a process for each step, in the directory that it builds.
os.chdir(_HERE)
