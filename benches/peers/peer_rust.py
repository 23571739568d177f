"""An echo in Rust on Callboard, in the process of the server: the same edge and command line without a Python child."""

from __future__ import annotations

import os

from arguments import Arguments

if __name__ == "__main__":
    arguments = Arguments.parse()
    binary = os.environ["PEERS_RUST"]
    options = ["--http", f"127.0.0.1:{arguments.port}", "--admin", "none", "--access-log", "false"]
    os.execv(binary, [binary, "serve", *options])
