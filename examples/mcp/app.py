"""Tools for agents: `callboard serve app.py`, then any client of the Model Context Protocol with the URL
`http://127.0.0.1:8000/mcp`.

An agent chooses a tool by the documentation of its function, so that says what it is good for, and what it answers.
"""

import ast
import operator
import time
from collections.abc import Iterator
from dataclasses import dataclass

import callboard as cb

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}

# What a handbook would say, in the place of a database.
HANDBOOK = {
    "vacation": "Everybody has 30 days of vacation a year. Ask two weeks ahead.",
    "travel": "Trains first. Flights need the word of a manager. Keep the receipts.",
    "sickness": "Tell your team in the morning. After three days send a note of a doctor.",
}


@cb.function(mcp=True, contract="pure")
def calculate(expression: str) -> float:
    """Calculates an expression of numbers with + - * / and parentheses, such as `(1 + 2) * 3.5`.

    Use it for every calculation: it is exact where a guess is not.
    """
    try:
        return float(value_of(ast.parse(expression, mode="eval").body))
    except (SyntaxError, TypeError, ZeroDivisionError, RecursionError, OverflowError) as error:
        raise cb.InvalidInput(f"{expression[:80]!r} cannot be calculated: {error}") from None


def value_of(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value_of(node.left), value_of(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value_of(node.operand))
    raise TypeError("only numbers, + - * / and parentheses")


@dataclass
class Found:
    title: str
    text: str
    hits: int


@cb.function(mcp=True, contract="pure")
def search_handbook(query: str, most: int = 3) -> list[Found]:
    """Searches the handbook of the company and answers the pages that fit best, the best first."""
    words = set(query.lower().split())
    pages = [Found(title, text, len(words & set(f"{title} {text}".lower().split()))) for title, text in HANDBOOK.items()]
    return sorted((page for page in pages if page.hits), key=lambda page: -page.hits)[:most]


@cb.function(mcp=True)
def plan_trip(city: str, days: int = 2) -> Iterator[dict | str]:
    """Plans a trip to a city, a day at a time. It takes a while and says how far it is."""
    for day in range(1, days + 1):
        time.sleep(0.05)
        yield {"progress": day, "total": days, "message": f"day {day}"}
        yield f"Day {day}: see {city}, part {day}.\n"
