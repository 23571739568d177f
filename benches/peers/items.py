"""What an item of a batch costs the worker in Python, by its parts: microseconds, the best of many rounds.

PYTHONPATH=python/src python benches/peers/items.py, in an environment with msgspec and numpy.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from pathlib import Path

import msgspec
from callboard._envelope import Decoder, encode, encode_pieces
from callboard._messages import Batch, decode_message
from callboard._runner import Runner
from callboard._target import load_route

from cases import ECHO, SQUARE

SIZE = 32
HERE = Path(__file__).resolve().parent
ITEM = {
    "remaining_ms": 29999.123,
    "request_id": "0123456789abcdef-00000000",
    "route": "/echo",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
}


def best(run: Callable[[], object], items: int = 1) -> str:
    number = max(1, 200 // items)
    return f"{min(timeit.repeat(run, number=number, repeat=60)) / number / items * 1e6:.2f}"


def costs(name: str, item: dict[str, object]) -> dict[str, str]:
    route = load_route(f"{HERE / 'peer_callboard.py'}:{name}")
    runner, decoder, part = Runner(route, route.instance()), Decoder(), encode(item)
    head = msgspec.msgpack.encode({"type": "batch", "id": 7, "items": [ITEM] * SIZE})
    message = decode_message(head)
    contexts = Batch(message, [part] * SIZE, None).contexts
    inputs = [decoder.decode(part)] * SIZE

    def run() -> list[object]:
        return list(runner.run(list(inputs), contexts, lambda index, output: None))

    output = run()[0]
    return {
        "head": best(lambda: decode_message(head), SIZE),
        "contexts": best(lambda: Batch(message, [part] * SIZE, None), SIZE),
        "decoding": best(lambda: decoder.decode(part)),
        "user code, with the conversion to its hints": best(run, SIZE),
        "encoding": best(lambda: encode_pieces(output)),
    }


if __name__ == "__main__":
    for name, item in (("echo", dict[str, object](ECHO)), ("Square", dict[str, object](SQUARE))):
        print(name, *(f"  {part}: {cost} µs" for part, cost in costs(name, item).items()), sep="\n")
