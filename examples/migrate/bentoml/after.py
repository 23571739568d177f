"""The same in Callboard: callboard serve after.py:Reviews"""

from pydantic import BaseModel

import callboard as cb


class Rating(BaseModel):
    score: int
    good: bool


@cb.service(replicas=2, timeout="5s")
class Words:
    def setup(self) -> None:
        self.words = {"good": 1, "great": 2, "bad": -1}

    @cb.batched(max_batch_size=32)
    def predict(self, texts: list[str]) -> list[int]:
        return [sum(self.words.get(word, 0) for word in text.split()) for text in texts]


@cb.service(route="/rate")
class Reviews:
    words = cb.depends(Words)

    @cb.concurrent(max=64)
    async def predict(self, text: str, least: int = 1) -> Rating:
        score = await self.words.predict(text)
        return Rating(score=score, good=score >= least)
