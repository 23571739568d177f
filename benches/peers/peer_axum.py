"""The square on axum alone, without batches, workers or Python: what the edge of a server on hyper costs."""

from __future__ import annotations

import os

from arguments import Arguments

if __name__ == "__main__":
    binary = os.environ["PEERS_AXUM"]
    os.execv(binary, [binary, str(Arguments.parse().port)])
