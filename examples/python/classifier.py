"""A classifier of scikit-learn, trained once on a node and loaded by each replica.

    pip install . scikit-learn
    callboard serve examples/python/classifier.py
    curl localhost:8000/iris -H 'content-type: application/json' \
        -d '{"sepal_length": 5.1, "sepal_width": 3.5, "petal_length": 1.4, "petal_width": 0.2}'
"""

import pickle
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated

from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

import callboard as cb

Centimetres = Annotated[float, cb.Field(gt=0, lt=50)]


@dataclass
class Flower:
    sepal_length: Centimetres
    sepal_width: Centimetres
    petal_length: Centimetres
    petal_width: Centimetres


@dataclass
class Species:
    name: str
    probability: float


@cb.service(timeout="5s", contract="pure", examples=[Flower(5.1, 3.5, 1.4, 0.2)])
class Iris:
    """Tells the species of an iris by its measures."""

    def prepare(self, cache: Path) -> None:
        flowers, species = load_iris(return_X_y=True)
        model = LogisticRegression(max_iter=1000).fit(flowers, species)
        (cache / "model.pickle").write_bytes(pickle.dumps(model))

    def setup(self, cache: Path) -> None:
        self.model = pickle.loads((cache / "model.pickle").read_bytes())
        self.names = list(load_iris().target_names)

    @cb.batched(max_batch_size=256)
    def predict(self, flowers: list[Flower]) -> list[Species]:
        rows = self.model.predict_proba([astuple(flower) for flower in flowers])
        return [Species(self.names[row.argmax()], float(row.max())) for row in rows]
