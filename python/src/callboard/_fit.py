"""Whether the output of a step fits the next one, as far as the hints of both say it.

Only what cannot fit is an error: a hint that is missing, and everything that a node alone knows, fits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, get_origin

import numpy as np

from callboard._arrays import array_axes, array_dtype, may_agree, shape_text
from callboard._compose import AnyStep, Ensemble, NodeStage, Pick, Pipeline, Step, Switch
from callboard._signature import Signature
from callboard._type_hints import name_of

Json = dict[str, Any]


class Misfit(TypeError):
    """An output that the next step refuses."""


@dataclasses.dataclass(frozen=True)
class Known:
    """A type that is known: its schema, and its name and hint if one hint says all."""

    schema: Json
    said_by: str
    hint: Any = None

    def __str__(self) -> str:
        return f"{self.said_by} gives `{name_of(self.hint) if self.hint is not None else self.schema.get('type')}`"


def check(step: AnyStep, signature_of: Callable[[AnyStep], Signature], given: Known | None = None) -> Known | None:
    """The output of `step` for this input; None if it is not known. Raises `Misfit`."""
    if isinstance(step, Pipeline):
        for part in step.steps:
            given = check(part, signature_of, given)
        return given
    if isinstance(step, Ensemble):
        members = {name: check(member, signature_of, given) for name, member in step.members.items()}
        schemas = {} if step.partial else {name: known.schema for name, known in members.items() if known}
        return Known(_object({name: schemas.get(name, {}) for name in members}), "the ensemble")
    if isinstance(step, Switch):
        if step.default is None:
            _field(given, step.field, "switch")
        outputs = [check(part, signature_of, given) for part in step.parts()]
        same = all(known and outputs[0] and known.schema == outputs[0].schema for known in outputs)
        return outputs[0] if same else None
    if isinstance(step, Pick):
        found = _field(given, step.field, "pick")
        return None if found is None or given is None else Known(found, f"`{step.field}` of what {given.said_by}")
    if isinstance(step, (NodeStage, Step)):
        return None
    signature = signature_of(step)
    needed = next(iter(signature.hints.values())) if len(signature.hints) == 1 else None
    why = given and (_arrays(given.hint, needed) or conflict(given.schema, signature.input_schema()))
    if why:
        takes = name_of(needed) if needed is not None else "an object of its parameters"
        raise Misfit(f"{given}, and {signature.where} takes `{takes}`: {why}")
    output = signature.output_schema()
    return Known(output, signature.where, signature.output) if output else None


def _object(properties: dict[str, Json]) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _field(given: Known | None, field: str, what: str) -> Json | None:
    """The schema of a field that a step needs."""
    fields = given.schema.get("properties") if given else None
    if fields is None:
        return None
    if field not in fields:
        raise Misfit(f"{given}, which has no field `{field}` for {what}: there are {', '.join(fields)}")
    found: Json = fields[field]
    return found


def _arrays(given: Any, needed: Any) -> str | None:
    """Arrays of different types or shapes. A schema does not tell them."""
    if not all((get_origin(hint) or hint) is np.ndarray for hint in (given, needed)):
        return None
    one, other = array_dtype(given), array_dtype(needed)
    if one is not None and other is not None and not (issubclass(one, other) or issubclass(other, one)):
        return f"an array of {one.__name__} is no array of {other.__name__}"
    has, wants = array_axes(given), array_axes(needed)
    if has is not None and wants is not None and not may_agree(has, wants):
        return f"an array of shape {shape_text(has)} is none of shape {shape_text(wants)}"
    return None


def conflict(given: Json, needed: Json, place: str = "$") -> str | None:
    """Why no value of the schema `given` can be one of `needed`; None if one may be."""
    for alternatives in ("anyOf", "oneOf"):
        if alternatives in given:
            found = [conflict(each, needed, place) for each in given[alternatives]]
            return found[0] if found and all(found) else None
        if alternatives in needed:
            found = [conflict(given, each, place) for each in needed[alternatives]]
            return found[0] if found and all(found) else None
    one, other = _types(given), _types(needed)
    if not one or not other:
        return None
    if not one & other:
        return f"{_words(one)} is no {_words(other)} - at `{place}`"
    if one == other == {"array"} and given.get("items") and needed.get("items"):
        return conflict(given["items"], needed["items"], f"{place}[…]")
    if one == other == {"object"}:
        return _objects(given, needed, place)
    return None


def _objects(given: Json, needed: Json, place: str) -> str | None:
    has, takes = given.get("properties"), needed.get("properties")
    if has is None or takes is None:
        return None
    missing = [name for name in needed.get("required", ()) if name not in has]
    if missing:
        return f"it has no `{missing[0]}` - at `{place}`"
    unknown = [name for name in given.get("required", ()) if name not in takes]
    if unknown and needed.get("additionalProperties") is False:
        return f"`{unknown[0]}` is not taken - at `{place}`"
    found = (conflict(has[name], takes[name], f"{place}.{name}") for name in has if name in takes)
    return next((why for why in found if why), None)


def _types(schema: Json) -> set[str]:
    kinds = schema.get("type")
    if kinds is None:
        return set()
    found = {kinds} if isinstance(kinds, str) else set(kinds)
    # A number may be a whole one.
    return found | {"integer", "number"} if found & {"integer", "number"} else found


def _words(types: set[str]) -> str:
    return " or ".join(sorted(types - {"integer"} if "number" in types else types))
