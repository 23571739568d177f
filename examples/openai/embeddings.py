"""A real model for the embeddings of OpenAI's API: `pip install wordllama`, then `callboard serve embeddings.py`.

WordLlama (MIT licence) is a table of word vectors taken from a large language model; its package has the weights, 16 MB.
"""

from pathlib import Path

import numpy as np
import wordllama
from numpy.typing import NDArray

import callboard as cb


@cb.service(name="wordllama", openai="embed", aliases=["text-embedding-3-small"], contract="pure")
class Embed:
    """Gives the embedding of a text: 256 numbers, a vector of length 1."""

    def setup(self) -> None:
        package = Path(wordllama.__file__).parent  # has `weights/` and `tokenizers/`: nothing is downloaded
        self.model = wordllama.WordLlama.load(cache_dir=package, disable_download=True)

    @cb.batched(max_batch_size=256)
    def predict(self, texts: list[str]) -> list[NDArray[np.float32]]:
        return self.model.embed(texts, norm=True)
