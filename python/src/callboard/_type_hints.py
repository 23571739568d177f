"""Type hints without aliases, and with the limits of pydantic as those of msgspec."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin

import msgspec

from callboard._unions import decidable, has_discriminator, is_union


def name_of(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint)


def normal(hint: Any) -> Any:
    """The hint without aliases, and with `pydantic.Field(ge=0)` inside of `Annotated` as ours."""
    hint = unaliased(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, *notes = arguments
        if has_discriminator(notes):
            return decidable(hint, tuple(map(normal, get_args(kind))), name_of)
        return Annotated[(normal(kind), *map(_limits, notes))]
    if origin in (list, dict, tuple, set, frozenset) and arguments:
        return origin[tuple(map(normal, arguments))]
    if is_union(hint):
        return decidable(hint, tuple(map(normal, arguments)), name_of)
    return hint


def unaliased(hint: Any) -> Any:
    """The type that `type X = ...` stands for. `NDArray` is such an alias in newer releases of NumPy."""
    alias = get_origin(hint) or hint
    while type(alias).__name__ == "TypeAliasType":
        arguments = get_args(hint)
        hint = alias.__value__[arguments] if arguments else alias.__value__
        alias = get_origin(hint) or hint
    return hint


def _limits(note: Any) -> Any:
    if type(note).__module__.partition(".")[0] not in ("pydantic", "annotated_types"):
        return note
    rules = [note, *getattr(note, "metadata", ())]
    names = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "title", "description")
    found = {
        name: getattr(rule, name, None) for name in names for rule in rules if getattr(rule, name, None) is not None
    }
    return msgspec.Meta(**found)
