"""Enumerations, dataclasses and models of pydantic that a gateway of evaluations sends by the names of their classes.

A class is imported only if its module is allowed: a name from outside would run any module. The message is that of the
relay: the module, the name of the class, and JSON.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import json
from typing import Any

_FIELDS = (1, 2, 3)
_allowed: set[str] = set()


class NotAllowed(PermissionError):
    """A class of a module that the participant has not allowed."""


def allow_modules(*names: str) -> None:
    """Allows the classes of these modules, and of all modules below them, as values of a gateway.

    Their modules are imported when a gateway sends such a value. Raises `ValueError` for a name that is no module's.
    """
    for name in names:
        if not isinstance(name, str) or not name or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"allow_modules: {name!r} is not the name of a module")
    _allowed.update(names)


def model_of(value: Any) -> tuple[str, bytes]:
    """The library of a model, and its message."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        library, text = "enum", json.dumps(value.name)
    elif hasattr(value, "model_dump_json"):
        library, text = "pydantic", value.model_dump_json()
    else:
        library, text = "dataclass", json.dumps(dataclasses.asdict(value))
    texts = (kind.__module__, kind.__qualname__, text)
    return library, b"".join(_field(number, each) for number, each in zip(_FIELDS, texts, strict=True))


def load(library: str, data: bytes) -> Any:
    """The value of a message. Raises `NotAllowed` before anything is imported, and `ValueError` for a wrong one."""
    module, name, text = _texts(data)
    if not any(module == each or module.startswith(f"{each}.") for each in _allowed):
        cure = "callboard.relay.allow_modules(…) in the participant's file"
        raise NotAllowed(f"the gateway sends a `{name[:100]}` of the module `{module[:100]}`: allow it by {cure}")
    kind: Any = importlib.import_module(module)
    for part in name.split("."):
        kind = vars(kind).get(part)
        if not isinstance(kind, type):
            raise ValueError(f"the module `{module}` has no class `{name[:100]}`")
    found = json.loads(text)
    if library == "enum" and issubclass(kind, enum.Enum):
        return kind[found]
    if library == "dataclass" and dataclasses.is_dataclass(kind):
        # It knows the types of the fields, and needs this module.
        from callboard._conversion import convert

        return convert(found, kind)
    if library == "pydantic" and hasattr(kind, "model_validate"):
        return kind.model_validate(found)
    raise ValueError(f"`{module}.{name[:100]}` is not of the kind `{library}`")


def _field(number: int, text: str) -> bytes:
    """A text as a field of protobuf."""
    data = text.encode()
    length, varint = len(data), bytearray()
    while length > 0x7F:
        varint.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((number << 3 | 2, *varint, length)) + data


def _texts(data: bytes) -> list[str]:
    """The three texts of a message. Other fields are refused: no version has any."""
    texts, at = dict.fromkeys(_FIELDS, ""), 0
    while at < len(data):
        number, length, shift = data[at] >> 3, 0, 0
        is_text = data[at] & 7 == 2 and number in texts
        # The length: seven bits of each byte, the last of which has no eighth.
        while at + 1 < len(data) and shift < 35:
            at += 1
            length |= (data[at] & 0x7F) << shift
            shift += 7
            if data[at] < 0x80:
                break
        at += 1
        if not is_text or not shift or data[at - 1] >= 0x80 or length > len(data) - at:
            raise ValueError("a model of a gateway that cannot be read")
        texts[number] = data[at : at + length].decode()
        at += length
    return [texts[number] for number in _FIELDS]
