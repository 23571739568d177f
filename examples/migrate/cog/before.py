"""A predictor of Cog: python -m cog.server.http, beside cog.yaml"""

from cog import BasePredictor, Input


class Predictor(BasePredictor):
    def setup(self) -> None:
        self.words = {"good": 1, "great": 2, "bad": -1}

    def predict(
        self,
        text: str = Input(description="The review"),
        unit: str = Input(description="What is counted", choices=["words", "letters"], default="words"),
        factor: float = Input(description="What the sum is multiplied by", ge=0, le=10, default=1.0),
    ) -> float:
        """Rates a review."""
        values = [self.words.get(word, 0) * (len(word) if unit == "letters" else 1) for word in text.split()]
        return factor * sum(values)
