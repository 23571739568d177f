"""Model archives of TorchServe and multi-model-server: `python -m callboard.mar reviews.mar reviews/`.

The command unpacks an archive into a directory that `callboard serve` takes, by `callboard.mar.archive`. `Handler` then
runs the code of the archive, in the worker.
"""

from callboard.mar._handler import Handler
from callboard.mar._manifest import ArchiveError

__all__ = ["ArchiveError", "Handler"]
