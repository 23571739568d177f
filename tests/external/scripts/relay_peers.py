"""Both sides of Kaggle's evaluations, as facts about them say, by grpcio alone: a client of theirs and a server of theirs.

The messages are declared in `callboard.relay.payload`; what is in them is written and read here by the libraries.
"""

import io
import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from callboard.relay.payload import SEND, SERVICE, messages

TYPES = messages()
RETRIES = {
    "methodConfig": [{
        "name": [{}],
        "retryPolicy": {
            "maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 1,
            "retryableStatusCodes": ["UNAVAILABLE"],
        },
    }]
}
OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.service_config", json.dumps(RETRIES)),
]
PORTS = [50051, *range(60053, 60153, 10)]


def write(value, payload=None):
    payload = TYPES["Payload"]() if payload is None else payload
    if isinstance(value, np.generic):
        payload.numpy_scalar_value = npy(value)
    elif isinstance(value, str):
        payload.str_value = value
    elif isinstance(value, bool):
        payload.bool_value = value
    elif isinstance(value, int):
        payload.int_value = value
    elif isinstance(value, float):
        payload.float_value = value
    elif value is None:
        payload.none_value = True
    elif isinstance(value, (list, tuple)):
        made = TYPES["PayloadList"](payloads=[write(item) for item in value])
        (payload.list_value if isinstance(value, list) else payload.tuple_value).CopyFrom(made)
    elif isinstance(value, dict):
        payload.dict_value.CopyFrom(TYPES["PayloadMap"](payload_map={key: write(item) for key, item in value.items()}))
    elif isinstance(value, pd.DataFrame):
        payload.pandas_dataframe_value = parquet(value)
    elif isinstance(value, pl.DataFrame):
        table, sink = value.to_arrow(), io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
            stream.write_table(table)
        payload.polars_dataframe_value = sink.getvalue()
    elif isinstance(value, pd.Series):
        payload.pandas_series_value = parquet(value.to_frame("value" if value.name is None else value.name))
    elif isinstance(value, pl.Series):
        sink = io.BytesIO()
        value.to_frame().write_parquet(sink, compression="lz4", statistics=False)
        payload.polars_series_value = sink.getvalue()
    elif isinstance(value, np.ndarray):
        payload.numpy_array_value = npy(value)
    elif isinstance(value, io.BytesIO):
        payload.bytes_io_value = value.getvalue()
    elif isinstance(value, tuple(MODELS)):
        (name, text) = next(of(value) for kind, of in MODELS.items() if isinstance(value, kind))
        kind = type(value)
        getattr(payload, name).CopyFrom(
            TYPES["DataModel"](module=kind.__module__, class_name=kind.__qualname__, data=text)
        )
    else:
        raise TypeError(type(value))
    return payload


# The kinds of models, which a test adds.
MODELS = {}


def npy(value):
    data = io.BytesIO()
    np.save(data, value, allow_pickle=False)
    return data.getvalue()


def parquet(frame):
    data = io.BytesIO()
    frame.to_parquet(data, compression="lz4", index=False)
    return data.getvalue()


def read(payload):
    name = payload.WhichOneof("value")
    value = getattr(payload, name)
    match name:
        case "none_value":
            return None
        case "list_value":
            return [read(item) for item in value.payloads]
        case "tuple_value":
            return tuple(read(item) for item in value.payloads)
        case "dict_value":
            return {key: read(item) for key, item in value.payload_map.items()}
        case "pandas_dataframe_value":
            return pd.read_parquet(io.BytesIO(value))
        case "polars_dataframe_value":
            return pl.from_arrow(pa.ipc.open_stream(value).read_all())
        case "pandas_series_value":
            return pd.read_parquet(io.BytesIO(value)).iloc[:, 0]
        case "polars_series_value":
            return pl.read_parquet(io.BytesIO(value)).to_series(0)
        case "numpy_array_value":
            return np.load(io.BytesIO(value), allow_pickle=False)
        case "numpy_scalar_value":
            array = np.load(io.BytesIO(value), allow_pickle=False)
            return array.dtype.type(array)
        case "bytes_io_value":
            return io.BytesIO(value)
        case "enum_value" | "dataclass_value" | "pydantic_model_value":
            return (name, value.module, value.class_name, json.loads(value.data))
    return value


class TheirClient:
    def __init__(self, host, ports=PORTS, options=()):
        self.host, self.ports, self.options = host, ports, [*OPTIONS, *options]
        self.stub = None

    def send(self, name, *args, deadline=3600, **kwargs):
        request = TYPES["KaggleEvaluationRequest"](
            name=name, args=[write(arg) for arg in args], kwargs={key: write(value) for key, value in kwargs.items()}
        )
        if self.stub is not None:
            return read(self.stub(request, timeout=deadline).payload)
        for attempt in range(11 * 900):
            channel = grpc.insecure_channel(f"{self.host}:{self.ports[attempt % len(self.ports)]}", options=self.options)
            stub = channel.unary_unary(
                SEND,
                request_serializer=TYPES["KaggleEvaluationRequest"].SerializeToString,
                response_deserializer=TYPES["KaggleEvaluationResponse"].FromString,
            )
            try:
                # The first call has no deadline.
                answer = stub(request, wait_for_ready=False)
                self.stub = stub
                return read(answer.payload)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    self.stub = stub
                    raise
                socket.gethostbyname(self.host)
                time.sleep(1 / 11)
        raise RuntimeError("Failed to connect to server after waiting 900 seconds")


def blame(error, endpoint):
    """What their gateway makes of an error."""
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "deadline", ""
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        return "connection failed", ""
    if f"No listener for {endpoint} was registered" in error.details():
        return "missing endpoint", ""
    if found := re.search("Exception calling application: (.*)", error.details()):
        return "raised", found[1]
    return "gateway", error.details()


class TheirServer:
    """Strictly serial. `port=0` is any free one."""

    def __init__(self, *functions, port=0):
        self.functions = {function.__name__: function for function in functions}
        self.server = grpc.server(ThreadPoolExecutor(max_workers=1), options=[
            ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0),
        ])
        send = grpc.unary_unary_rpc_method_handler(
            self.answer,
            request_deserializer=TYPES["KaggleEvaluationRequest"].FromString,
            response_serializer=TYPES["KaggleEvaluationResponse"].SerializeToString,
        )
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Send": send}),))
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        self.calls = 0

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *_):
        self.server.stop(0)

    def answer(self, request, _):
        self.calls += 1
        if request.name not in self.functions:
            raise NotImplementedError(f"No listener for {request.name} was registered.")
        args = [read(arg) for arg in request.args]
        kwargs = {key: read(value) for key, value in request.kwargs.items()}
        value = self.functions[request.name](*args, **kwargs)
        return TYPES["KaggleEvaluationResponse"](payload=write(value))
