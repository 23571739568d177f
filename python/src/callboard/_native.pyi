"""The client over QUIC, in Rust. Wheels have it; `callboard.client.quic` is its only user."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import Any, final

from callboard._envelope import Buffer
from callboard.client.transport import Options

@final
class Connection:
    def __new__(
        cls,
        url: str,
        *,
        cluster: str | os.PathLike[str] | None = None,
        start_up_wait: float = 10.0,
        connect_timeout: float = 2.0,
        attempts: int = 3,
        max_reply_bytes: int = 1 << 30,
    ) -> Connection: ...
    def call(self, route: str, pieces: Sequence[Buffer], options: Options) -> bytes: ...
    def call_async(
        self,
        completions: Completions,
        future: asyncio.Future[Any],
        route: str,
        pieces: Sequence[Buffer],
        options: Options,
    ) -> int: ...
    def replies(self, route: str, pieces: Sequence[Buffer], options: Options) -> Replies: ...
    def close(self) -> None: ...

@final
class Replies(Iterator[bytes]):
    def __iter__(self) -> Replies: ...
    def __next__(self) -> bytes: ...
    def next_async(self, completions: Completions, future: asyncio.Future[Any]) -> int: ...
    def close(self) -> None: ...

@final
class Completions:
    def __new__(cls) -> Completions: ...
    def fileno(self) -> int: ...
    def deliver(self) -> None: ...
    def cancel(self, number: int) -> None: ...
    def close(self) -> None: ...
