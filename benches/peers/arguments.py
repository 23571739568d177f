"""What every peer is started with."""

from __future__ import annotations

import argparse
import dataclasses


@dataclasses.dataclass(frozen=True)
class Arguments:
    case: str
    port: int
    processes: int
    # Whether the queue is bounded, for answers that are of use within a second.
    bounded: bool

    @classmethod
    def parse(cls) -> Arguments:
        parser = argparse.ArgumentParser()
        parser.add_argument("case")
        parser.add_argument("--port", type=int, required=True)
        parser.add_argument("--processes", type=int, default=1)
        parser.add_argument("--bounded", action="store_true")
        return cls(**vars(parser.parse_args()))
