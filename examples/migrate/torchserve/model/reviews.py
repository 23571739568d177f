"""A handler of TorchServe and multi-model-server."""

import json
from pathlib import Path
from typing import Any


class Reviews:
    def initialize(self, context: Any) -> None:
        directory = Path(context.system_properties["model_dir"])
        self.words = json.loads((directory / "words.json").read_text())

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        return [self.rating(row["body"]["text"]) for row in data]

    def rating(self, text: str) -> dict[str, Any]:
        score = sum(self.words.get(word, 0) for word in text.split())
        return {"score": score, "good": score > 0}


service = Reviews()


def handle(data: Any, context: Any) -> Any:
    """The entry: the first call loads the model, without data."""
    if not hasattr(service, "words"):
        service.initialize(context)
    return None if data is None else service.handle(data, context)
