"""Routes that are tools for agents: what is described of them. `tests/external` calls them."""

from __future__ import annotations

from pathlib import Path

import pytest

import callboard as cb
from callboard._app import load_app

APP = '''
import callboard as cb

@cb.function(mcp=True)
def shout(text: str) -> str:
    """Says it
    in capitals.

    Not for whispers.
    """
    return text.upper()

@cb.service(mcp=True)
class Texts:
    """Works on texts."""

    def predict(self, text: str) -> int:
        return len(text)

    @cb.route("/first", mcp=True)
    def first(self, text: str) -> str:
        """The first letter."""
        return text[:1]

    @cb.route("/plain")
    def plain(self, text: str) -> str:
        return text
'''


def test_a_tool_has_the_whole_text_of_its_documentation(tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text(APP)
    services = load_app(str(file)).describe()["services"]
    tools = {service["route"]: (service["mcp"], service["documentation"]) for service in services}
    assert tools == {
        "/shout": (True, "Says it\nin capitals.\n\nNot for whispers."),
        "/texts": (True, "Works on texts."),
        "/first": (True, "The first letter."),
        "/plain": (False, None),
    }


def test_a_wrong_value_is_refused() -> None:
    with pytest.raises(TypeError, match="mcp='yes': must be True or False"):
        cb.function(mcp="yes")(len_of)  # type: ignore[call-overload]


def len_of(text: str) -> int:
    return len(text)
