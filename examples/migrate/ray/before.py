"""Three deployments of Ray Serve: serve run before:api"""

import asyncio

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from ray import serve
from ray.serve.handle import DeploymentHandle

app = FastAPI()


class Question(BaseModel):
    text: str
    model: str = "small"


@serve.deployment(num_replicas=2, max_ongoing_requests=64)
class Spam:
    def __init__(self, least: float) -> None:
        self.least = least

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.01)
    async def __call__(self, texts: list[str]) -> list[bool]:
        return [len(set(text)) < self.least * len(text) for text in texts]


@serve.deployment(autoscaling_config={"min_replicas": 1, "max_replicas": 2})
class Models:
    @serve.multiplexed(max_num_models_per_replica=2)
    async def load(self, name: str) -> int:
        return len(name)

    async def answer(self, text: str, model: str) -> str:
        return " ".join([text] * await self.load(model))


@serve.deployment
@serve.ingress(app)
class Api:
    def __init__(self, spam: DeploymentHandle, models: DeploymentHandle) -> None:
        self.spam = spam
        self.models = models

    @app.post("/ask")
    async def ask(self, question: Question) -> dict[str, str]:
        if await self.spam.remote(question.text):
            raise HTTPException(403, "spam")
        answer = self.models.answer.remote(question.text, question.model)
        return {"answer": await asyncio.wait_for(answer, 5)}


api = Api.bind(Spam.bind(0.2), Models.bind())
