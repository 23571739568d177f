"""The messages of a node as a worker takes them, and a batch of them that runs: `docs/worker-protocol.md`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from callboard._auth import RequestHeaders
from callboard._context import Context
from callboard._envelope import Buffer
from callboard._fetch import FileRules

PROTOCOL = 1


class Start(msgspec.Struct, tag="start", tag_field="type"):
    protocol: int
    stage: str = ""
    replica: int = 0
    generation: int = 0
    max_batch_size: int = 1
    max_bytes: int = 64 << 20
    shared_memory: bool = False
    settings: dict[str, Any] | None = None
    # How many batches may be open at once, and how many outputs of an item may wait for their reader.
    max_batches: int = 1
    credit: int | None = None
    # How many batches more may come before their turn, where there is one at a time.
    ahead: int = 0
    files: FileRules | None = None
    # Whether the node wants to know what is done until `ready`.
    progress: bool = False
    # Whether the node takes what user code counts.
    metrics: bool = False
    # The methods that it runs beside that of its target.
    methods: list[str] = []
    # The contract of its stage, and then those of the stages of `methods`. Without it those of the decorators count.
    contracts: list[str] = []


class Item(msgspec.Struct):
    remaining_ms: float | None = None
    request_id: str | None = None
    traceparent: str | None = None
    caller: str | None = None
    route: str | None = None
    session: int | None = None
    headers: dict[str, str] = {}
    tags: dict[str, str] = {}
    query: dict[str, str] = {}
    path: str | None = None
    method: str | None = None
    client: str | None = None


class BatchHead(msgspec.Struct, tag="batch", tag_field="type"):
    id: int
    items: list[Item]
    # None: that of the target.
    method: str | None = None


class Cancel(msgspec.Struct, tag="cancel", tag_field="type"):
    id: int
    item: int


class Credit(msgspec.Struct, tag="credit", tag_field="type"):
    id: int
    item: int
    outputs: int


class Result(msgspec.Struct, tag="result", tag_field="type"):
    id: int
    error: dict[str, Any] | None = None


class CallOutput(msgspec.Struct, tag="call_output", tag_field="type"):
    id: int


class Ping(msgspec.Struct, tag="ping", tag_field="type"):
    pass


class Stop(msgspec.Struct, tag="stop", tag_field="type"):
    # When the node kills a worker that has not ended.
    timeout_ms: int | None = None


Message = Start | BatchHead | Cancel | Credit | Result | CallOutput | Ping | Stop

decode_message = msgspec.msgpack.Decoder(Message).decode


class Batch:
    """A batch that runs."""

    def __init__(self, head: BatchHead, parts: list[Buffer], credit: int | None) -> None:
        now = time.monotonic()
        self.id = head.id
        self.method = head.method
        self.parts = parts
        self.contexts = [_context(item, now, head.id, index) for index, item in enumerate(head.items)]
        self.on_cancel: Callable[[int], object] | None = None
        # For each item, what its outputs wait for.
        self.credit = [asyncio.Semaphore(credit) for _ in head.items] if credit else None

    def cancel(self, index: int) -> None:
        if 0 <= index < len(self.contexts):
            self.contexts[index]._cancelled = True
            if self.on_cancel is not None:
                self.on_cancel(index)


def _context(item: Item, now: float, batch: int, index: int) -> Context:
    # In the order of its fields: names would double what it costs, and each item has one.
    return Context(
        item.request_id,
        item.route,
        item.caller,
        item.traceparent,
        item.session,
        # A node sends them in lower case. Most items have none.
        RequestHeaders(item.headers) if item.headers else item.headers,
        item.tags,
        item.query,
        item.path,
        None if item.remaining_ms is None else now + item.remaining_ms / 1000,
        item.method,
        item.client,
        False,
        (batch, index),
    )
