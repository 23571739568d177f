"""Mixed calls of one `AsyncClient`, and of httpx in the same event loop: each task must end.

`soak.py URL [SECONDS]` calls a node that serves `client_app.py`, for 10 minutes by default; `client.py` does so for some
seconds.
"""

import asyncio
import collections
import contextlib
import random
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np

import callboard as cb

TASKS = 24
# After the end a task may wait for its last call this long.
GRACE = 30


async def mixed_calls(url, seconds, seed, directory):
    """Makes calls, cancels some at any moment, leaves streams, and gives others no time. Returns what became of them."""
    counts, now = collections.Counter(), {}
    # What `/wait` writes.
    mark = str(Path(directory, "soak"))
    end = time.monotonic() + seconds

    async def call(number):
        chance = random.Random(f"{seed} {number}")
        while time.monotonic() < end:
            name = chance.choice(["add", "array", *["cancelled"] * 5, "stream", "left", "late", "ordered", "other"])
            now[number] = name
            try:
                await one(name, chance)
                counts[name] += 1
            except cb.CallError as error:
                assert error.kind in ("overloaded", "deadline_exceeded"), error
                counts[f"{name}: {error.kind}"] += 1

    async def one(name, chance):
        if name == "add":
            assert await client.call("/add", {"a": number_of(chance)}, timeout=GRACE) > 0
        elif name == "array":
            array = np.arange(number_of(chance))
            assert (await client.send("echo", array)).shape == array.shape
        elif name == "cancelled":
            task = asyncio.ensure_future(client.call("/wait", mark))
            # In any turn of the loop, or while it waits.
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                await asyncio.sleep(chance.choice([0.001, 0.01]))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        elif name in ("stream", "left"):
            async with contextlib.aclosing(client.replies("/count", 9)) as outputs:
                async for output in outputs:
                    if name == "left" and output == 3:
                        break
        elif name == "late":
            with contextlib.suppress(cb.CallError):
                await client.call("/wait", mark, timeout=chance.choice([0.001, 0.005]))
        elif name == "ordered":
            # Of a full node an output may be an error.
            _ = [_ async for _ in client.stream("/add", [{"a": 1}] * 9, look_ahead=3)]
        else:
            asked = other_http2 if chance.random() < 0.25 else other
            assert (await asked.post("/nowhere", content=b"x" * 5000)).status_code == 404

    # As many connections as tasks, so that one which is lost is missed.
    async with (
        cb.AsyncClient(url, max_connections=TASKS) as client,
        httpx.AsyncClient(base_url=url, timeout=GRACE) as other,
        httpx.AsyncClient(base_url=url, timeout=GRACE, http1=False, http2=True) as other_http2,
    ):
        tasks = {asyncio.ensure_future(call(number)): number for number in range(TASKS)}
        _, left = await asyncio.wait(tasks, timeout=seconds + GRACE)
        assert not left, f"seed {seed}: tasks wait: {[now[tasks[task]] for task in left]}"
        await asyncio.gather(*tasks)
        assert await client.call("/add", {"a": 1}, timeout=GRACE) == 2
        limit = time.monotonic() + GRACE
        while "callboard_in_flight 0\n" not in (await other.get("/metrics")).text:
            assert time.monotonic() < limit, "the node has calls in flight"
            await asyncio.sleep(0.05)
    return counts


def number_of(chance):
    return chance.randrange(1, 50_000)


if __name__ == "__main__":
    length, start = float(sys.argv[2]) if len(sys.argv) > 2 else 600.0, random.randrange(1 << 32)
    print("seed", start, flush=True)
    with tempfile.TemporaryDirectory() as place:
        found = asyncio.run(mixed_calls(sys.argv[1], length, start, place))
    for what, count in found.most_common():
        print(count, what)
