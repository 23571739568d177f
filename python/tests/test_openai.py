"""Routes that are models for the clients of OpenAI's API: what is described of them. `tests/external` calls them."""

from __future__ import annotations

from pathlib import Path

import pytest

import callboard as cb
from callboard._app import load_app

APP = """
import callboard as cb

@cb.function(openai="chat", aliases=["gpt-4o-mini"])
def repeat(messages: list[dict], temperature: float = 1.0) -> str:
    return messages[-1]["content"]

@cb.service(openai="embed")
class Texts:
    def predict(self, text: str) -> list[float]:
        return [float(len(text))]

    @cb.route("/rank", openai="rerank")
    def rank(self, query: str, document: str) -> float:
        return float(query in document)

    @cb.route("/plain")
    def plain(self, text: str) -> str:
        return text
"""


def test_the_task_of_each_route_is_described(tmp_path: Path) -> None:
    file = tmp_path / "models.py"
    file.write_text(APP)
    services = load_app(str(file)).describe()["services"]
    tasks = {service["route"]: service["openai"] for service in services}
    aliases = {service["route"]: service["aliases"] for service in services}
    assert aliases == {"/repeat": ["gpt-4o-mini"], "/texts": [], "/rank": [], "/plain": []}
    assert tasks == {"/repeat": "chat", "/texts": "embed", "/rank": "rerank", "/plain": None}


def test_a_wrong_task_is_named_with_the_right_ones() -> None:
    with pytest.raises(ValueError, match="openai='chats': did you mean 'chat'\\?; there are chat, complete, embed"):
        cb.function(openai="chats")(len_of)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="openai=7; there are chat"):
        cb.route("/x", openai=7)(len_of)  # type: ignore[arg-type]


def test_aliases_are_names_of_a_model() -> None:
    with pytest.raises(ValueError, match="names of a model"):
        cb.function(aliases=["a"])(len_of)
    with pytest.raises(TypeError, match="must be a list of names"):
        cb.function(openai="chat", aliases="a")(len_of)
    with pytest.raises(ValueError, match="printable"):
        cb.function(openai="chat", aliases=[""])(len_of)


def len_of(text: str) -> int:
    return len(text)
