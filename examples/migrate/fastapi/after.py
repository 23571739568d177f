"""The same in Callboard: callboard serve after.py"""

from pydantic import BaseModel, Field

import callboard as cb


class Review(BaseModel):
    text: str = Field(min_length=1)
    least: int = 1


class Rating(BaseModel):
    score: int
    good: bool


@cb.service
class Rate:
    """Rates a review."""

    def setup(self) -> None:
        self.model = {"good": 1, "great": 2, "bad": -1}

    @cb.batched(max_batch_size=32)
    def predict(self, reviews: list[Review]) -> list[Rating | cb.HTTPException]:
        return [self.rating(review) for review in reviews]

    def rating(self, review: Review) -> Rating | cb.HTTPException:
        if "spam" in review.text:
            return cb.HTTPException(403, "no advertisements")
        score = sum(self.model.get(word, 0) for word in review.text.split())
        return Rating(score=score, good=score >= review.least)
