"""Two services of BentoML: bentoml serve before:Reviews --port 8001"""

import bentoml
from pydantic import BaseModel


class Rating(BaseModel):
    score: int
    good: bool


@bentoml.service(workers=2, traffic={"timeout": 5})
class Words:
    def __init__(self) -> None:
        self.words = {"good": 1, "great": 2, "bad": -1}

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=1000)
    def score(self, texts: list[str]) -> list[int]:
        return [sum(self.words.get(word, 0) for word in text.split()) for text in texts]


@bentoml.service
class Reviews:
    words = bentoml.depends(Words)

    @bentoml.api
    async def rate(self, text: str, least: int = 1) -> Rating:
        score = (await self.words.to_async.score([text]))[0]
        return Rating(score=score, good=score >= least)
