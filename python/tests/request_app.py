"""Services whose arguments are parts of the request, for `test_request.py`."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import callboard as cb

Users = Annotated[str, cb.Header("X-User")]


@cb.service
class Greet:
    def predict(
        self,
        name: str,
        user: Users,
        x_times: Annotated[int | None, cb.Header()] = None,
        limit: Annotated[int, cb.Field(ge=1), cb.Query()] = 10,
        tags: Annotated[list[int], cb.Query("tag")] = (),  # type: ignore[assignment]
        theme: Annotated[str, cb.Cookie] = "light",
    ) -> list[Any]:
        """Tells its arguments."""
        return [name, user, x_times, limit, list(tags), theme]

    @cb.route("/greet/many")
    @cb.batched(max_batch_size=4)
    def many(self, names: list[str], users: Annotated[list[str], cb.Header("x-user")]) -> list[str]:
        return [f"{name} {user}" for name, user in zip(names, users, strict=True)]

    @cb.route("/greet/nobody")
    async def nobody(self, context: cb.Context, user: Users) -> list[Any]:
        return [user, context.headers, context.query]


@cb.service
class Items:
    @cb.route("/items/{item_id}", methods=["get"])
    def item(
        self, item_id: Annotated[int, cb.Field(ge=1)], limit: int = 10, tags: list[str] = (), user: Users = ""
    ) -> list[Any]:  # type: ignore[assignment]
        return [item_id, limit, list(tags), user]

    @cb.route("/ids", methods=["GET"])
    def ids(self, ids: list[int] | None = None) -> list[int] | None:
        return ids

    @cb.route("/items/latest", methods=["GET", "DELETE"])
    def latest(self) -> str:
        return "latest"

    @cb.route("/names/{name}/of/{group}")
    @cb.batched
    def name(self, values: list[int], group: list[str], name: list[str]) -> list[list[Any]]:
        return [list(each) for each in zip(values, name, group, strict=True)]

    @cb.route("/words/{word}/letters", methods=["GET"])
    async def letters(self, word: str) -> AsyncIterator[str]:
        for letter in word:
            yield letter


@cb.service(headers=["x-user"])
class Outer:
    greet = cb.depends(Greet)

    def predict(self, name: str) -> list[Any]:
        return self.greet(name)
