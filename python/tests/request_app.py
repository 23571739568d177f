"""Services whose arguments are parts of the request, for `test_request.py`."""

import math
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


@cb.service
class Shelf:
    """Four methods at two paths."""

    @cb.route("/shelf", methods=["GET"])
    def every(self, limit: int = 10) -> list[Any]:
        return ["all", limit]

    def predict(self, name: str) -> list[Any]:
        return ["add", name]

    @cb.route("/shelf/{place}", methods=["GET"])
    def one(self, place: int) -> list[Any]:
        return ["one", place]

    @cb.route("/shelf/{place}", methods=["DELETE", "PUT"])
    def drop(self, place: int, context: cb.Context) -> list[Any]:
        return ["drop", place, context.route]


@cb.function(route="/shelf", methods=["PATCH"])
def sort(by: str) -> list[Any]:
    return ["sort", by]


@cb.function
def session(context: cb.Context) -> int | None:
    return context.session


@cb.service
class Reader:
    shelf = cb.depends(Shelf)
    by_path = cb.depends("PATCH /shelf")

    def predict(self, text: str) -> list[Any]:
        return [self.shelf.every(), self.shelf(text), self.by_path(text)]


@cb.function(route="/head/{part}", methods=["GET"], headers=["x-user", "authorization", "cookie"], query=["page"])
def head(part: str, context: cb.Context) -> list[Any]:
    asked = context.request
    return [asked.method, asked.path, asked.query, asked.headers["x-user"], asked.cookies, asked.bearer, asked.client]


@cb.function
def lone(n: int | None = 5) -> int | None:
    return n


@cb.function
def named(data: bytes = b"abc") -> int:
    return len(data)


@cb.function
def chosen(tags: set[str] = {"a"}) -> list[str]:  # noqa: B006 - each call has a copy
    return sorted(tags)


@cb.function
def bound(most: float = math.inf) -> str:
    return str(most)


@cb.function
def hidden(data: bytes | None = b"abc") -> bytes | None:
    return data


@cb.function
def page(file: cb.File = cb.File(b"x")) -> int:  # noqa: B008 - nothing changes it
    return len(file)


@cb.function
def nothing(context: cb.Context) -> list[Any]:
    asked = context.request
    return [asked.method, asked.path, asked.query, asked.headers]


@cb.function(route="/by-method", methods=["DELETE", "PATCH"])
def by_method(context: cb.Context) -> str:
    return context.request.method


@cb.function(route="/by-method", methods=["PUT"])
def by_put(context: cb.Context) -> str:
    context.request.headers["x"] = "y"
    return f"{context.request.method} {context.headers}"


@cb.function
def themes(theme: Annotated[str, cb.Cookie()], context: cb.Context) -> list[str]:
    return [theme, context.request.cookies["theme"]]


@cb.function
def sign_up(name: str, age: int | None = None, news: bool = False, tags: list[str] = ()) -> list[Any]:  # type: ignore[assignment]
    return [name, age, news, list(tags)]


@cb.function
def subscribe(mail: Annotated[str, cb.Form(), cb.Field(min_length=3)]) -> str:
    return mail


@cb.function
@cb.batched
def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


@cb.service(headers=["x-user"])
class Outer:
    greet = cb.depends(Greet)

    def predict(self, name: str) -> list[Any]:
        return self.greet(name)
