"""The command, which unpacks an archive."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from callboard.mar._manifest import ArchiveError
from callboard.mar.archive import MAX_BYTES, MAX_FILES, unpack


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m callboard.mar", description="Unpack a model archive.")
    parser.add_argument("archive", type=Path)
    parser.add_argument("directory", type=Path, help="a new directory, for `callboard serve`")
    parser.add_argument("--max-bytes", type=int, default=MAX_BYTES, help="of all files unpacked (default: %(default)s)")
    parser.add_argument(
        "--max-files", type=int, default=MAX_FILES, help="and directories in the archive (default: %(default)s)"
    )
    arguments = parser.parse_args()
    try:
        limits = {"max_bytes": arguments.max_bytes, "max_files": arguments.max_files}
        name = unpack(arguments.archive, arguments.directory, **limits)
    except (ArchiveError, OSError) as error:
        sys.exit(f"{arguments.archive}: {error}")
    print(f"{name}: callboard serve {os.fspath(arguments.directory)}")


if __name__ == "__main__":
    main()
