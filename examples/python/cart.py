"""One cart for each customer, whose content survives a restart: a keyed class.

    pip install .
    callboard serve examples/python/cart.py
    curl localhost:8000/cart/ann/add -H 'content-type: application/json' -d '{"item": "tea", "count": 2}'
    curl localhost:8000/cart/ann

The calls of one cart run one after another, those of different carts at the same time.
"""

from dataclasses import dataclass, field

import callboard as cb


@dataclass
class Content:
    """What is kept of a cart."""

    items: dict[str, int] = field(default_factory=dict)
    ordered: int = 0


@cb.keyed(replicas=2)
class Cart:
    """The cart of a customer, by the name in the path."""

    state: Content

    def add(self, item: str, count: int = 1) -> int:
        """Puts something into the cart, and answers how many of it are there."""
        if count < 1:
            raise cb.HTTPException(422, "the count is at least 1")
        self.state.items[item] = self.state.items.get(item, 0) + count
        return self.state.items[item]

    @cb.route("/cart/{key}", methods=["GET"])
    def show(self) -> Content:
        """Answers what is in the cart."""
        return self.state

    def order(self) -> str:
        """Orders all that is in the cart, and empties it."""
        if not self.state.items:
            raise cb.HTTPException(409, "the cart is empty")
        self.state.ordered += 1
        self.state.items.clear()
        # The number is saved before this answer leaves: no two orders have the same.
        return f"{self.key}-{self.state.ordered}"
