"""A keyed class for tests."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import Annotated

import callboard as cb


@dataclass
class Content:
    items: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)


@cb.keyed(headers=["x-user"], idle_after="5m")
class Basket:
    """What somebody wants to buy."""

    state: Content

    def setup(self, key: str, device: str) -> None:
        self.calls = 0
        self.device = device
        self.greeting = f"the basket of {key}"

    def add(self, item: str) -> int:
        """Puts something in."""
        self.calls += 1
        self.state.items.append(item)
        self.state.kinds.add(item)
        if item == "bomb":
            raise cb.HTTPException(409, "no bombs")
        if item == "crash":
            os._exit(7)
        return len(self.state.items)

    @cb.route("/basket/{key}", methods=["GET"])
    def show(self, limit: int = 10) -> list[str]:
        self.calls += 1
        return self.state.items[:limit]

    def about(self, context: cb.Context, user: Annotated[str, cb.Header("x-user")] = "nobody") -> dict[str, str]:
        return {"text": self.greeting, "device": self.device, "user": user, "route": str(context.route)}

    @cb.route("/basket/{key}/{item}/take")
    def take(self, key: str, item: str) -> str:
        self.state.items.remove(item)
        return f"{key} has no {item}"

    def count_of_calls(self) -> int:
        return self.calls

    def check_out(self, fails: bool) -> list[str]:
        """Forgets the key."""
        items = self.state.items
        del self.state
        if fails:
            raise cb.HTTPException(409, "not now")
        return items

    def spoil(self, whole: bool) -> str:
        """Makes a state that does not fit its hint."""
        if whole:
            self.state = 5  # type: ignore[assignment]
        else:
            self.state.items.append(5)  # type: ignore[arg-type]
        return "done"


@cb.keyed(durable=False, save_every="1s")
class Visits:
    """How often somebody has come."""

    state: int = 0

    async def predict(self) -> int:
        self.state += 1
        return self.state


@cb.keyed(durable=False)
class Line:
    """The calls in their order; those with a gate wait until it is there."""

    state: list[int]

    @cb.concurrent(max=4)
    async def predict(self, number: int, gate: str | None = None) -> list[int]:
        seen = [*self.state, number]
        while gate is not None and not os.path.exists(gate):
            await asyncio.sleep(0.005)
        self.state = seen
        return seen
