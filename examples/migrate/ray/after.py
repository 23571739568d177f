"""The same in Callboard: callboard serve after.py:Api"""

from functools import lru_cache

from pydantic import BaseModel

import callboard as cb


class Question(BaseModel):
    text: str
    model: str = "small"


@cb.service(replicas=2)
class Spam:
    def setup(self, least: float = 0.2) -> None:
        self.least = least

    @cb.batched(max_batch_size=8)
    def predict(self, texts: list[str]) -> list[bool]:
        return [len(set(text)) < self.least * len(text) for text in texts]


@cb.service(replicas=(1, 2))
class Models:
    def setup(self) -> None:
        self.load = lru_cache(maxsize=2)(len)

    def predict(self, text: str, model: str) -> str:
        return " ".join([text] * self.load(model))


@cb.service(route="/ask")
class Api:
    spam = cb.depends(Spam)
    models = cb.depends(Models)

    @cb.concurrent(max=64)
    async def predict(self, question: Question) -> dict[str, str]:
        if await self.spam.predict(question.text):
            raise cb.HTTPException(403, "spam")
        answer = self.models.predict(question.text, question.model, timeout="5s")
        return {"answer": await answer}
