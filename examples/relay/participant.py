"""A participant: it predicts the scores of a day. `callboard serve participant.py`"""

import callboard as cb


@cb.function
def predict(values: list[float], day: int) -> list[float]:
    return [value * 2 + day for value in values]
