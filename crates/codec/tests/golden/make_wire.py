"""Makes the transcripts in wire/ from the drawing in docs/wire.md, with nothing but Python's own `struct`: a second
implementation that must agree byte by byte. A transcript of a version that was ever released is never made again.

    python make_wire.py
"""

import pathlib
import struct

HERE = pathlib.Path(__file__).parent / "wire"
HELLO, WELCOME, CALL, CANCEL, ITEM, DONE, FAIL, CREDIT, GOAWAY, OFFERS, JOIN, RENEW, CERTIFICATE = range(1, 14)


def pack(value):
    """The shortest MessagePack, for what stands in headers."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        for limit, marker, form in [(1 << 7, None, "B"), (1 << 8, 0xCC, "B"), (1 << 16, 0xCD, ">H"), (1 << 32, 0xCE, ">I"), (1 << 64, 0xCF, ">Q")]:
            if value < limit:
                return (b"" if marker is None else bytes([marker])) + struct.pack(form, value)
    if isinstance(value, str):
        text = value.encode()
        return (bytes([0xA0 | len(text)]) if len(text) < 32 else struct.pack("BB", 0xD9, len(text))) + text
    if isinstance(value, list):
        return bytes([0x90 | len(value)]) + b"".join(map(pack, value))
    if isinstance(value, dict):
        return bytes([0x80 | len(value)]) + b"".join(pack(key) + pack(item) for key, item in value.items())
    raise TypeError(value)


def envelope(value):
    tree = pack(value)
    return b"\x89CBE" + struct.pack("<B3xIIQ", 1, len(tree), 0, 24 + len(tree)) + tree


def frame(kind, header=None, body=b"", entry=0, version=1):
    header = b"" if header is None else pack(header)
    return b"CBQ" + struct.pack("<BBBHIQ", version, kind, 0, entry, len(header), len(body)) + header + body


def hello():
    return {"min_version": 1, "max_version": 1, "cluster": "dev", "node": "", "generation": 0, "address": "", "build": "1"}


origin = {
    "caller": "web",
    "path": "/shout",
    "headers": [["x-city", "Lima"]],
    "query": [["q", "7"]],
    "tags": [["tenant", "acme"]],
}
(HERE / "v1-caller.bin").write_bytes(
    frame(HELLO, hello())
    + frame(CALL, {"route": "/shout", "millis_left": 500, "priority": 1}, envelope("hello"))
    + frame(CALL, {"stages": ["decode", "scale"], "millis_left": 70000, "session": 1 << 63}, envelope([1, "a"]), entry=1)
    + frame(CALL, {"route": "/count", "function": True, "credit": 8, "first_item_millis": 9}, envelope({"args": [3], "kwargs": {}}), entry=2)
    + frame(CALL, {"stages": ["decode"], "origin": origin}, envelope("hello"), entry=3)
    + frame(CREDIT, {"items": 4}, entry=2)
    + frame(CANCEL, entry=1)
)
welcome = {"version": 1, "node": "a", "generation": 7, "build": "1", "max_body_bytes": 67108864, "draining": False}
offers = [{"name": "/shout", "stage": False, "revision": 1, "streams": False, "idempotent": True}]
fail = {"kind": "failed", "message": "no", "started": True, "error_type": "E", "status": 418, "remote_trace": "t", "stage": "s"}
(HERE / "v1-node.bin").write_bytes(
    frame(WELCOME, welcome, envelope(offers))
    + frame(ITEM, {}, envelope(0), entry=2)
    + frame(DONE, {"times": {"queue": 1, "batch": 2, "compute": 300}, "load": {"in_flight": 5}}, envelope("HELLO"))
    + frame(FAIL, fail, envelope({"why": "x"}), entry=1)
    + frame(FAIL, {"kind": "overloaded", "message": "full", "started": False, "retry_after_millis": 250}, entry=3)
    + frame(DONE, {}, entry=2)
    + frame(GOAWAY, {"reason": "draining"})
)
# On connections of ALPN callboard-join/1.
(HERE / "v1-join.bin").write_bytes(
    frame(JOIN, {"cluster": "lab-01", "token": "0a1b", "name": "left", "proof": "ff00"}, b"-----BEGIN CERTIFICATE REQUEST-----\n")
    + frame(RENEW, {}, b"-----BEGIN CERTIFICATE REQUEST-----\n")
    + frame(CERTIFICATE, {}, b"-----BEGIN CERTIFICATE-----\n")
    + frame(FAIL, {"kind": "permission_denied", "message": "no", "started": False, "error_type": "used_up_token"})
)
# What a later version may send to one of this version: the same frames with fields that are not known yet.
later = {"route": "/shout", "colour": {"deep": [[1, {"er": None}]]}, "millis_left": 500, "tenant": "x"}
(HERE / "later-caller.bin").write_bytes(frame(HELLO, hello() | {"max_version": 9, "wishes": ["a"]}) + frame(CALL, later, envelope("hello")))

# A session of version 1, stream by stream, which is played to a node and to a client of today: `crates/net/tests/it/transcripts.rs`.
session = {
    "hello": frame(HELLO, hello() | {"cluster": ""}),
    "pack": frame(CALL, {"route": "/shout", "millis_left": 60000}, envelope("hello"))
    + frame(CALL, {"route": "/never", "millis_left": 60000}, envelope("x"), entry=1)
    + frame(CALL, {"route": "/nowhere", "millis_left": 60000}, envelope("x"), entry=2)
    + frame(CANCEL, entry=1),
    "stream": frame(CALL, {"route": "/count", "millis_left": 60000, "credit": 2}, envelope(4)),
    "credit": frame(CREDIT, {"items": 100}),
    "welcome": frame(WELCOME, welcome, envelope(offers)),
    "answer": frame(DONE, {"times": {"queue": 1, "batch": 2, "compute": 300}, "load": {"in_flight": 5}}, envelope("HELLO")),
    "failure": frame(FAIL, fail, envelope({"why": "x"})),
    "items": frame(ITEM, {}, envelope(0)) + frame(ITEM, {}, envelope(1)) + frame(DONE, {}),
    "goaway": frame(GOAWAY, {"reason": "draining"}),
}
for name, data in session.items():
    (HERE / f"v1-session-{name}.bin").write_bytes(data)
