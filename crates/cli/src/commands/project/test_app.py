"""The tests of the service, in this process: python -m pytest"""

import callboard as cb
import pytest

from app import Sentiment


def test_texts_are_labelled() -> None:
    with cb.test_client(Sentiment) as client:
        assert client.batch(["a good day", "a bad day", "a day"]) == ["good", "bad", "neutral"]


def test_an_empty_text_is_refused() -> None:
    with cb.test_client(Sentiment) as client, pytest.raises(cb.HTTPException, match="422"):
        client.call(" ")
