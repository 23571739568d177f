"""A stream of tokens: server-sent events, or JSON lines if `accept` asks for them.

    pip install .
    callboard serve examples/python/tokens.py
    curl -N localhost:8000/chat -H 'content-type: application/json' -d '{"prompt": "a good day", "most": 8}'
"""

import asyncio
from collections.abc import AsyncIterator

import callboard as cb


@cb.service(examples=[{"prompt": "a good day"}])
class Chat:
    """Continues a text, token by token."""

    async def setup(self) -> None:
        self.following = {"a": "good", "good": "day", "day": "is", "is": "a"}

    @cb.concurrent(max=64)
    async def predict(self, prompt: str, most: int = 4) -> AsyncIterator[str]:
        if not prompt.split():
            raise cb.HTTPException(422, "the prompt is empty")
        token = prompt.split()[-1]
        for _ in range(most):
            token = self.following.get(token, "a")
            # A model computes here. If the client leaves, `CancelledError` is raised here.
            await asyncio.sleep(0)
            yield token
