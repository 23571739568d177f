"""Services whose arguments are parts of the request, for `test_request.py`."""

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


@cb.service(headers=["x-user"])
class Outer:
    greet = cb.depends(Greet)

    def predict(self, name: str) -> list[Any]:
        return self.greet(name)
