"""Type hints without aliases, and with the limits of pydantic as those of msgspec."""

from __future__ import annotations

import functools
from typing import Annotated, Any, get_args, get_origin

import msgspec

from callboard import _media, _records
from callboard._unions import decidable, has_discriminator, is_stand_in, is_union, of_pydantic


def name_of(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint)


def normal(hint: Any) -> Any:
    """The hint without aliases, and with `pydantic.Field(ge=0)` inside of `Annotated` as ours."""
    return _Reader(objects=False).read(hint)


def with_objects(hint: Any) -> Any:
    """A normal hint that takes an object for each NamedTuple, too."""
    try:
        return _with_objects(hint)
    except TypeError:
        # Notes of `Annotated` may be lists.
        return _Reader(objects=True).read(hint)


@functools.lru_cache(maxsize=256)
def _with_objects(hint: Any) -> Any:
    return _Reader(objects=True).read(hint)


class _Reader:
    """Reads one hint. With `objects`, a NamedTuple is read from a map, too."""

    def __init__(self, *, objects: bool) -> None:
        self.objects = objects
        # The stand-ins of classes, which may contain themselves.
        self.made: dict[Any, Any] = {}

    def read(self, hint: Any) -> Any:
        hint = unaliased(hint)
        if is_stand_in(hint):
            if hasattr(hint, "model_validate"):
                return hint
            hint = hint.__stands_for__
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            kind, *notes = arguments
            if has_discriminator(notes):
                return decidable(hint, tuple(map(self.read, get_args(kind))), name_of)
            return Annotated[(self.read(kind), *map(_limits, notes))]
        if origin in (list, dict, tuple, set, frozenset) and arguments:
            parts = tuple(map(self.read, arguments))
            return hint if _same(parts, arguments) else origin[parts]
        if is_union(hint):
            return decidable(hint, tuple(map(self.read, arguments)), name_of)
        if not isinstance(hint, type) or _media.is_file(hint):
            return hint
        return of_pydantic(hint) or self._class(hint)

    def _class(self, kind: Any) -> Any:
        if kind in self.made:
            return self.made[kind]
        if not self._is_touched(kind, set()):
            return kind
        found = _records.fields_of(kind) or []
        self.made[kind] = record = _records.stand_in(kind)
        fields = [field._replace(hint=self.read(field.hint)) for field in found]
        _records.complete(record, fields, objects=self.objects)
        return record

    def _is_touched(self, hint: Any, seen: set[Any]) -> bool:
        """Whether it is, or has inside, a type that is not read as it stands."""
        hint = unaliased(hint)
        if is_stand_in(hint):
            return not hasattr(hint, "model_validate")
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            kind, *notes = arguments
            changed = any(_limits(note) is not note for note in notes) or has_discriminator(notes)
            return changed or self._is_touched(kind, seen)
        if arguments:
            if is_union(hint) and is_stand_in(decidable(hint, arguments, name_of)):
                return True
            return any(self._is_touched(each, seen) for each in arguments)
        if not isinstance(hint, type) or _media.is_file(hint) or hint in seen:
            return False
        seen.add(hint)
        if of_pydantic(hint) or _records.has_other_arguments(hint):
            return True
        if self.objects and _records.is_named_tuple(hint):
            return True
        return any(self._is_touched(field.hint, seen) for field in _records.fields_of(hint) or ())


def _same(parts: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return all(part is other for part, other in zip(parts, others, strict=True))


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
