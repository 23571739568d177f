"""OpenAI's library against a real model of embeddings.

    openai_embeddings.py BASE

Related texts are nearer than others, in both encodings, and by each name of the model.
"""

import base64
import sys

import numpy as np
from openai import OpenAI

TITLES = ["How do I reset my password?", "What does shipping cost?", "When will my parcel arrive?"]


def main(base):
    client = OpenAI(base_url=base, api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["wordllama", "text-embedding-3-small"]
    # The library asks for base64 by itself, and decodes it.
    vectors = embeddings(client, "wordllama", TITLES)
    assert vectors.shape == (3, 256), vectors.shape
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
    (question,) = embeddings(client, "text-embedding-3-small", "where is my package")
    assert (vectors @ question).argmax() == 2, vectors @ question
    plain = client.embeddings.create(model="wordllama", input=TITLES, encoding_format="float")
    assert np.allclose([entry.embedding for entry in plain.data], vectors)
    coded = client.embeddings.create(model="wordllama", input=TITLES, encoding_format="base64")
    for entry, vector in zip(coded.data, vectors, strict=True):
        assert np.array_equal(np.frombuffer(base64.b64decode(entry.embedding), np.float32), vector.astype(np.float32))


def embeddings(client, model, texts):
    answer = client.embeddings.create(model=model, input=texts)
    return np.array([entry.embedding for entry in answer.data])


main(sys.argv[1])
