"""Values as the messages of an evaluation relay, and back. The messages are declared here, without a file of protobuf.

A `float` has 32 bits there, keys are texts, and a frame goes with the library that it is of: the table is in
`docs/python/relay.md`.
"""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np

from callboard._envelope import MissingPackageError, TooLargeError, type_name
from callboard._envelope.arrow import read_table
from callboard._envelope.frame_check import Room
from callboard._envelope.layout import MAX_UNPACKED_BYTES
from callboard._envelope.packed import form_of, frame_of, pack, read_parquet
from callboard._models import load

SERVICE = "kaggle_evaluation_client.KaggleEvaluationService"
SEND = f"/{SERVICE}/Send"

# The fields of a value: its number, its name and its type, which is another message if it begins with a capital.
_VALUES = (
    (1, "str_value", "string"), (2, "bool_value", "bool"), (3, "int_value", "sint64"), (4, "float_value", "float"),
    (5, "none_value", "bool"), (6, "list_value", "PayloadList"), (7, "tuple_value", "PayloadList"),
    (8, "dict_value", "PayloadMap"), (9, "pandas_dataframe_value", "bytes"), (10, "polars_dataframe_value", "bytes"),
    (11, "pandas_series_value", "bytes"), (12, "polars_series_value", "bytes"), (13, "numpy_array_value", "bytes"),
    (14, "numpy_scalar_value", "bytes"), (15, "bytes_io_value", "bytes"), (17, "enum_value", "DataModel"),
    (18, "dataclass_value", "DataModel"), (19, "pydantic_model_value", "DataModel"),
)  # fmt: skip
_MODELS = {"enum_value": "enum", "dataclass_value": "dataclass", "pydantic_model_value": "pydantic"}
_PARQUET = {
    "pandas_dataframe_value": ("pandas", False),
    "pandas_series_value": ("pandas", True),
    "polars_series_value": ("polars", True),
}
# Readers of protobuf take no deeper messages; two levels of a list are as deep as four messages.
_MAX_DEPTH = 50


@functools.lru_cache(maxsize=1)
def messages() -> dict[str, Any]:
    """The classes of the messages by their names. Raises `MissingPackageError` without protobuf."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise MissingPackageError("the relay over gRPC needs grpcio and protobuf: install `callboard[relay]`") from None
    package = SERVICE.rpartition(".")[0]
    file = descriptor_pb2.FileDescriptorProto(name="callboard/relay.proto", package=package, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def add(message: Any, number: int, name: str, kind: str, *, is_list: bool = False) -> Any:
        label = kinds.LABEL_REPEATED if is_list else kinds.LABEL_OPTIONAL
        field = message.field.add(name=name, number=number, label=label)
        if kind[0].isupper():
            field.type, field.type_name = kinds.TYPE_MESSAGE, f".{package}.{kind}"
        else:
            field.type = getattr(kinds, f"TYPE_{kind.upper()}")
        return field

    def add_map(message: Any, number: int, name: str) -> None:
        entry = "".join(part.capitalize() for part in name.split("_")) + "Entry"
        add(message, number, name, f"{message.name}.{entry}", is_list=True)
        nested = message.nested_type.add(name=entry)
        nested.options.map_entry = True
        add(nested, 1, "key", "string")
        add(nested, 2, "value", "Payload")

    payload = file.message_type.add(name="Payload")
    payload.oneof_decl.add(name="value")
    for number, name, kind in _VALUES:
        add(payload, number, name, kind).oneof_index = 0
    add(file.message_type.add(name="PayloadList"), 1, "payloads", "Payload", is_list=True)
    add_map(file.message_type.add(name="PayloadMap"), 1, "payload_map")
    model = file.message_type.add(name="DataModel")
    for number, name in enumerate(("module", "class_name", "data"), 1):
        add(model, number, name, "string")
    request = file.message_type.add(name="KaggleEvaluationRequest")
    add(request, 1, "name", "string")
    add(request, 2, "args", "Payload", is_list=True)
    add_map(request, 3, "kwargs")
    add(file.message_type.add(name="KaggleEvaluationResponse"), 1, "payload", "Payload")
    # A pool of its own: a program may have the files of others.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = (message.name for message in file.message_type)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in names}


# ---- Writing ---------------------------------------------------------------------------------------------------------


def request(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, exact_floats: bool = False) -> bytes:
    """A request. Raises `TypeError` for a value that no relay sends. `exact_floats` go as scalars of NumPy."""
    message = messages()["KaggleEvaluationRequest"](name=name)
    for value in args:
        _write(value, message.args.add(), exact_floats, 0)
    for key, value in kwargs.items():
        _write(value, message.kwargs[key], exact_floats, 0)
    written: bytes = message.SerializeToString()
    return written


def response(value: Any) -> bytes:
    """A response. Raises as `request`."""
    message = messages()["KaggleEvaluationResponse"]()
    _write(value, message.payload, False, 0)
    written: bytes = message.SerializeToString()
    return written


def _write(value: Any, payload: Any, exact_floats: bool, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise TypeError(f"nesting beyond the {_MAX_DEPTH} levels that readers of a relay take")
    if isinstance(value, np.generic):
        if not isinstance(value, (np.number, np.bool_)):
            raise TypeError(f"a scalar of NumPy is a number or a bool, not a `{type_name(value)}`")
        payload.numpy_scalar_value = _npy(np.asarray(value))
    elif (packed := _packed(value)) is not None:
        name, data = packed
        if name in _MODELS:
            getattr(payload, name).ParseFromString(data)
        else:
            setattr(payload, name, data)
    elif isinstance(value, str):
        payload.str_value = value
    elif isinstance(value, bool):
        payload.bool_value = value
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise TypeError("an integer beyond 64 bits has no form in a relay")
        payload.int_value = value
    elif isinstance(value, float):
        if exact_floats:
            payload.numpy_scalar_value = _npy(np.float64(value))
        else:
            payload.float_value = value
    elif value is None:
        payload.none_value = True
    elif isinstance(value, (list, tuple)):
        items = payload.list_value if isinstance(value, list) else payload.tuple_value
        items.SetInParent()
        for item in value:
            _write(item, items.payloads.add(), exact_floats, depth + 1)
    elif isinstance(value, dict):
        payload.dict_value.SetInParent()
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a key of a dict is a text, not a `{type_name(key)}`")
            _write(item, payload.dict_value.payload_map[key], exact_floats, depth + 1)
    elif isinstance(value, np.ndarray):
        payload.numpy_array_value = _npy(value)
    elif isinstance(value, io.BytesIO):
        payload.bytes_io_value = value.getvalue()
    else:
        raise TypeError(f"a value of type `{type_name(value)}` has no form in a relay")


def _packed(value: Any) -> tuple[str, bytes] | None:
    """The name of the field and the bytes of a frame, a series or a model."""
    library = type(value).__module__.partition(".")[0]
    if library == "polars" and type(value).__name__ == "DataFrame":
        return "polars_dataframe_value", _stream(value)
    table = pack(value)
    if table is None:
        return None
    library, form = form_of(table) or ("", "")
    data = table.column(0)[0].as_buffer().to_pybytes()
    if form == "model":
        return next(name for name, of in _MODELS.items() if of == library), data
    return f"{library}_{'series' if form == 'series' else 'dataframe'}_value", data


def _stream(frame: Any) -> bytes:
    """A frame of polars as one Arrow stream. Raises `TypeError` for the types that no relay sends."""
    refused = {kind for kind in map(str, map(_base, frame.schema.values())) if kind in ("Enum", "Object", "Unknown")}
    if refused:
        raise TypeError(f"columns of the types {', '.join(sorted(refused))} have no form in a relay")
    import pyarrow

    table, sink = frame.to_arrow(), pyarrow.BufferOutputStream()
    options = pyarrow.ipc.IpcWriteOptions(compression="lz4")
    with pyarrow.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _base(dtype: Any) -> Any:
    return dtype.base_type().__name__


def _npy(array: Any) -> bytes:
    if array.dtype.hasobject:
        raise TypeError(f"an array of dtype `{array.dtype}` cannot be sent")
    data = io.BytesIO()
    np.save(data, array)
    return data.getvalue()


# ---- Reading ---------------------------------------------------------------------------------------------------------


def read_request(data: bytes) -> tuple[str, list[Any], dict[str, Any]]:
    """Name and arguments of a request, with the types of their libraries. Raises `ValueError`."""
    message, room = _parsed("KaggleEvaluationRequest", data), Room(MAX_UNPACKED_BYTES)
    args = [_read(payload, room, True) for payload in message.args]
    return message.name, args, {key: _read(payload, room, True) for key, payload in message.kwargs.items()}


def read_response(data: Any, max_bytes: int, *, is_as_sent: bool = False) -> Any:
    """The value of a response. Frames unpack to at most this size; without `is_as_sent` they are those of pyarrow."""
    message = _parsed("KaggleEvaluationResponse", bytes(data))
    return _read(message.payload, Room(max_bytes), is_as_sent)


def _parsed(name: str, data: bytes) -> Any:
    kind = messages()[name]
    try:
        return kind.FromString(data)
    except Exception as error:
        # Each implementation of protobuf has its own.
        raise ValueError(f"no message of a relay: {error}") from None


def _read(payload: Any, room: Room, is_as_sent: bool) -> Any:
    name = payload.WhichOneof("value")
    if name is None:
        raise ValueError("a value of no type that this reader knows")
    value = getattr(payload, name)
    if name == "none_value":
        return None
    if name in ("list_value", "tuple_value"):
        items = (_read(item, room, is_as_sent) for item in value.payloads)
        return list(items) if name == "list_value" else tuple(items)
    if name == "dict_value":
        return {key: _read(item, room, is_as_sent) for key, item in value.payload_map.items()}
    if name in _MODELS:
        return load(_MODELS[name], value.SerializeToString())
    if name == "bytes_io_value":
        return io.BytesIO(value)
    if name in ("numpy_array_value", "numpy_scalar_value"):
        room.take(len(value))
        array = _array(value)
        return array if name == "numpy_array_value" else _scalar(array)
    if name == "polars_dataframe_value":
        return frame_of(read_table(memoryview(value), room), "polars", False, room, is_as_sent)
    if name in _PARQUET:
        import pyarrow

        library, is_series = _PARQUET[name]
        return frame_of(read_parquet(pyarrow.py_buffer(value), room), library, is_series, room, is_as_sent)
    return value


def _array(data: bytes) -> Any:
    """An array whose size is that of its bytes: its header may announce more."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    size = dtype.itemsize * int(np.prod([int(axis) for axis in shape], dtype=object))
    if dtype.hasobject or size != len(data) - stream.tell():
        raise TooLargeError(f"an array of {size} bytes in {len(data)} bytes")
    # Without pickle, as NumPy does it by default.
    return np.load(io.BytesIO(data))


def _scalar(array: Any) -> Any:
    if array.shape:
        raise ValueError("a scalar of NumPy with axes")
    return array.dtype.type(array)
