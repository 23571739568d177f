"""The JSON Schema of a type hint."""

from __future__ import annotations

import collections.abc
import contextvars
import functools
import importlib.util
import io
import math
import os
import sys
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import numpy as np

from callboard import _media, _torch
from callboard._arrays import Axes, array_axes, array_dtype, concrete, shape_text
from callboard._envelope.frames import LIBRARIES
from callboard._records import is_record
from callboard._unions import is_model, is_stand_in, is_union

# The elements of an example. The start of a node prints it.
_SHOWN = 16


def schema(hint: Any) -> dict[str, Any]:
    """The JSON Schema of a hint, without `$ref`. A type that contains itself is left open."""
    (found,), definitions = msgspec.json.schema_components([_named_arrays(hint)], schema_hook=_schema_hook)
    inlined: dict[str, Any] = _inline(found, definitions, ())
    return inlined


def _named_arrays(hint: Any) -> Any:
    """The hint with its arrays annotated by their dtype and shape, which msgspec does not look at."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is np.ndarray or origin is np.ndarray:
        scalar, axes = array_dtype(hint), array_axes(hint)
        description = f"an array of {scalar.__name__}" if scalar else "an array"
        if axes is not None:
            description += f" of shape {shape_text(axes)}"
        one = np.ones((), concrete(scalar) if scalar else np.float64)
        # Shown in the documentation, also where nothing says how many axes it has.
        shape = (2,) if axes is None else tuple(2 if each is None else each[0] for each in axes)
        is_shown = isinstance(one.item(), bool | int | float) and math.prod(shape) <= _SHOWN
        examples = [np.broadcast_to(one, shape).tolist()] if is_shown else None
        extra = None if axes is None else _nested(axes) if axes else _schema_hook(scalar or np.float64)
        return Annotated[np.ndarray, msgspec.Meta(description=description, examples=examples, extra_json_schema=extra)]
    if origin in (list, dict, tuple, set, frozenset):
        return origin[tuple(_named_arrays(each) for each in arguments)] if arguments else hint
    if is_union(hint):
        return Union[tuple(_named_arrays(each) for each in arguments)]  # noqa: UP007 - the parts are only known here
    return hint


def _nested(axes: Axes) -> dict[str, Any]:
    """The lists that an array is in JSON."""
    found: dict[str, Any] = {}
    for lengths in reversed(axes):
        bounds = {} if lengths is None else {"minItems": min(lengths), "maxItems": max(lengths)}
        found = {"type": "array", **bounds, **({"items": found} if found else {})}
    return found


def _schema_hook(kind: type) -> dict[str, Any]:
    if kind is np.ndarray:
        return {"type": "array"}
    if _media.is_file(kind):
        return _media.schema(kind)
    if kind is io.BytesIO:
        return schema(bytes)
    if _torch.is_tensor(kind):
        return {"type": "array", "description": "an array, as a tensor of PyTorch"}
    if is_record(kind):
        return _record_schema(kind)
    if is_stand_in(kind) and not is_model(kind):
        return {"anyOf": [schema(member) for member in kind.members]}  # type: ignore[attr-defined]
    if is_model(kind):
        model = _model_schema(kind)
        return _inline(model, model.pop("$defs", {}), ())  # type: ignore[no-any-return]
    if issubclass(kind, np.bool_):
        return {"type": "boolean"}
    if issubclass(kind, np.generic):
        return {"type": "integer" if issubclass(kind, np.integer) else "number"}
    if kind.__module__.partition(".")[0] in LIBRARIES:
        return _frame_schema(kind)
    reason = f"the type `{_public_name(kind)}` cannot be made from an input"
    if any(base.__module__.startswith("pydantic.v1") for base in kind.__mro__):
        reason += ": it is a model of pydantic 1, and models of pydantic 2 are needed"
    else:
        reason += _cure(kind)
    raise TypeError(reason)


def _public_name(kind: type) -> str:
    """The name by which code imports it: `pathlib.Path` is of a private module since Python 3.13."""
    return f"{kind.__module__.partition('._')[0]}.{kind.__qualname__}"


def _cure(kind: type) -> str:
    """What to write in the place of a type that cannot be made."""
    package = kind.__module__.partition(".")[0]
    if issubclass(kind, os.PathLike):
        return ": take a `str`"
    if package == "collections" and issubclass(kind, collections.abc.Iterable):
        return ": take a `list`"
    return "" if package in sys.stdlib_module_names else ": make it a dataclass or a model of pydantic"


def _frame_schema(kind: type) -> dict[str, Any]:
    name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    if importlib.util.find_spec("pyarrow") is None:
        # Said at the start, and not by the first call.
        raise TypeError(f"the type `{name}` needs pyarrow: install `callboard[arrow]`")
    description = {"description": name}
    if kind.__name__ not in ("DataFrame", "Table"):
        return description
    columns = {"type": "object", "additionalProperties": {"type": "array"}, "title": "columns"}
    records = {"type": "array", "items": {"type": "object"}, "title": "records"}
    return {**description, "anyOf": [columns, records]}


# The classes whose schemas are being made: one inside of itself is left open.
_open_records: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("callboard_open_records", default=())


def _record_schema(record: Any) -> dict[str, Any]:
    if record in _open_records.get():
        return {"title": record.__name__}
    token = _open_records.set((*_open_records.get(), record))
    try:
        found = [schema(struct) for struct in record.structs]
    finally:
        _open_records.reset(token)
    return found[0] if len(found) == 1 else {"anyOf": found}


def _model_schema(kind: Any) -> dict[str, Any]:
    model: dict[str, Any]
    if not hasattr(kind, "__pydantic_core_schema__") and not is_stand_in(kind):
        # A class that only looks like a model.
        model = kind.model_json_schema()
        return model
    from pydantic.errors import PydanticInvalidForJsonSchema

    try:
        model = kind.model_json_schema(schema_generator=_schema_generator())
        return model
    except PydanticInvalidForJsonSchema as error:
        raise TypeError(f"the type `{_public_name(kind)}` has no schema: {error.message}") from error


@functools.lru_cache(maxsize=1)
def _schema_generator() -> Any:
    """The generator of pydantic's schemas that knows arrays."""
    from pydantic.json_schema import GenerateJsonSchema

    class WithArrays(GenerateJsonSchema):
        def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Any:
            if schema.get("cls") is np.ndarray:
                return {"type": "array"}
            return super().handle_invalid_for_json_schema(schema, error_info)

        def decimal_schema(self, schema: Any) -> Any:
            # By this format, and no number beside it, the node keeps the digits of a number.
            return {"type": "string", "format": "decimal"}

    return WithArrays


def _inline(node: Any, definitions: dict[str, Any], open_names: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [_inline(each, definitions, open_names) for each in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    if not isinstance(reference, str):
        return {
            key: _inline(value, definitions, open_names) for key, value in node.items() if not _is_mapping(key, value)
        }
    name = reference.rpartition("/")[2]
    rest = {key: value for key, value in node.items() if key != "$ref"}
    if name in open_names or name not in definitions:
        return rest
    return {**_inline(definitions[name], definitions, (*open_names, name)), **rest}


def _is_mapping(key: str, value: Any) -> bool:
    """Whether this is OpenAPI's `discriminator`, which refers to definitions, and no field of that name."""
    return key == "discriminator" and isinstance(value, dict) and "propertyName" in value
