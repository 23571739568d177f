"""A model behind FastAPI: uvicorn before:app --port 8001"""

from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field


class Review(BaseModel):
    text: str = Field(min_length=1)
    least: int = 1


class Rating(BaseModel):
    score: int
    good: bool


model = {}


@asynccontextmanager
async def lifespan(app: FastAPI):
    model.update(good=1, great=2, bad=-1)
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/rate")
def rate(review: Review) -> Rating:
    """Rates a review."""
    if "spam" in review.text:
        raise HTTPException(403, "no advertisements")
    score = sum(model.get(word, 0) for word in review.text.split())
    return Rating(score=score, good=score >= review.least)
