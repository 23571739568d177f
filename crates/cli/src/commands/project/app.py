"""NAME: a service in Python."""

from typing import Literal

import callboard as cb


@cb.service(replicas=1, timeout="5s", contract="pure", examples=["a good day"])
class Sentiment:
    """Tells whether a text is good or bad."""

    def setup(self) -> None:
        # Once for each replica: load your model here.
        self.scores = {"good": 1, "great": 1, "bad": -1, "sad": -1}

    @cb.batched(max_batch_size=32)
    def predict(self, texts: list[str]) -> list[Literal["good", "bad", "neutral"]]:
        return [self.label(text) for text in texts]

    def label(self, text: str) -> Literal["good", "bad", "neutral"] | cb.HTTPException:
        if not text.strip():
            # In its place in the list it fails this text; raised, it would fail the whole batch.
            return cb.HTTPException(422, "the text is empty")
        score = sum(self.scores.get(word, 0) for word in text.lower().split())
        return "good" if score > 0 else "bad" if score < 0 else "neutral"
