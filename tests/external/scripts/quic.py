"""A client for frames, version 1, written from docs/wire.md: other people's QUIC and MessagePack, and nothing of ours.

Usage: quic.py HOST:PORT DIRECTORY, where the directory holds the identity of a member. The node serves

    /double  a number, twice           scale   a function of x and factor
    /count   0, 1, … n - 1 as a stream /held   what never ends
    /echo    its input                 /seen   how many held calls have begun, and how many were given up
"""

import asyncio
import re
import struct
import sys

import msgpack
from aioquic.asyncio import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamDataReceived, StreamReset

HELLO, WELCOME, CALL, CANCEL, ITEM, DONE, FAIL, CREDIT = 1, 2, 3, 4, 5, 6, 7, 8
CANCELLED, PROTOCOL = 0x10, 0x14
PATIENCE = 60


def frame(kind, header=None, body=b"", entry=0):
    """Prelude, header, body."""
    head = b"" if header is None else msgpack.packb(header)
    return b"CBQ\x01" + struct.pack("<BBHIQ", kind, 0, entry, len(head), len(body)) + head + body


def envelope(value):
    """Without segments: everything stands in the tree."""
    tree = msgpack.packb(value)
    return b"\x89CBE\x01\0\0\0" + struct.pack("<IIQ", len(tree), 0, 24 + len(tree)) + tree


def opened(body):
    """The value of an envelope, its segments (of bytes) put back in their places."""
    assert body[:8] == b"\x89CBE\x01\0\0\0", body[:8]
    tree_bytes, segments, whole = struct.unpack_from("<IIQ", body, 8)
    assert whole == len(body), (whole, len(body))
    lengths = struct.unpack_from(f"<{segments}Q", body, 24)
    at = 24 + 8 * segments
    tree, at, places = body[at : at + tree_bytes], at + tree_bytes, []
    for length in lengths:
        at = -(-at // 64) * 64
        places.append(body[at : at + length])
        at += length
    assert at == whole, (at, whole)

    def extension(code, payload):
        assert (code, payload[0]) == (7, 0), "a segment of bytes"
        return places[struct.unpack_from("<I", payload, 4)[0]]

    return msgpack.unpackb(tree, ext_hook=extension)


class Stream:
    """The frames of one stream, as they come."""

    def __init__(self, protocol, number):
        self.protocol, self.number = protocol, number
        self.buffer, self.arrived = b"", asyncio.Event()
        self.ended, self.reset = False, None

    def send(self, *frames, end=False):
        self.protocol._quic.send_stream_data(self.number, b"".join(frames), end)
        self.protocol.transmit()

    def give_up(self, code):
        self.protocol._quic.reset_stream(self.number, code)
        self.protocol._quic.stop_stream(self.number, code)
        self.protocol.transmit()

    async def read(self, count):
        """So many bytes; nothing at the end of the stream."""
        while len(self.buffer) < count:
            if self.reset is not None:
                raise ConnectionResetError(self.reset)
            if self.ended:
                assert not self.buffer, "the stream ends inside a frame"
                return None
            self.arrived.clear()
            await asyncio.wait_for(self.arrived.wait(), PATIENCE)
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    async def frame(self):
        prelude = await self.read(20)
        if prelude is None:
            return None
        magic, kind, flags, entry, head, body = struct.unpack("<4sBBHIQ", prelude)
        assert (magic, flags) == (b"CBQ\x01", 0), prelude
        header = msgpack.unpackb(await self.read(head)) if head else {}
        return kind, entry, header, await self.read(body) if body else b""

    async def rest(self):
        frames = []
        while (found := await self.frame()) is not None:
            frames.append(found)
        return frames


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.streams, self.end = {}, None

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated):
            self.end = (event.error_code, event.reason_phrase)
            for stream in self.streams.values():
                stream.reset = event.error_code
                stream.arrived.set()
            return
        stream = self.streams.get(getattr(event, "stream_id", None))
        if stream is None:
            return
        if isinstance(event, StreamDataReceived):
            stream.buffer += event.data
            stream.ended = event.end_stream
        elif isinstance(event, StreamReset):
            stream.reset = event.error_code
        stream.arrived.set()

    def stream(self):
        number = self._quic.get_next_available_stream_id()
        self.streams[number] = Stream(self, number)
        return self.streams[number]


def configuration(directory):
    """The member's own certificate and key, and the authority that the node's is held against."""
    with open(f"{directory}/identity.pem") as file:
        parts = re.findall(r"-----BEGIN (.*?)-----.*?-----END \1-----\n", file.read(), re.DOTALL)
        file.seek(0)
        pems = re.findall(r"-----BEGIN .*?-----END [A-Z ]*-----\n", file.read(), re.DOTALL)
    assert parts == ["PRIVATE KEY", "CERTIFICATE", "CERTIFICATE"], parts
    names = [f"{directory}/{name}" for name in ("key.pem", "own.pem", "authority.pem")]
    for name, pem in zip(names, pems):
        with open(name, "w") as file:
            file.write(pem)
    result = QuicConfiguration(is_client=True, alpn_protocols=["callboard/1"], server_name="node.callboard")
    result.load_cert_chain(names[1], names[0])
    result.load_verify_locations(names[2])
    return result


async def seen(client, begun, given_up):
    """Waits until so many held calls have begun, and so many were given up."""
    while True:
        asking = client.stream()
        asking.send(frame(CALL, {"route": "/seen"}, envelope(None)), end=True)
        [(kind, _, _, body)] = await asking.rest()
        assert kind == DONE
        if opened(body) == [begun, given_up]:
            return
        await asyncio.sleep(0.01)


async def talk(client):
    hello = client.stream()
    hello.send(frame(HELLO, {"min_version": 1, "max_version": 1, "build": "somebody else's"}))
    kind, _, welcome, body = await hello.frame()
    assert (kind, welcome["version"]) == (WELCOME, 1), (kind, welcome)
    offers = {offer["name"]: offer for offer in opened(body)}
    assert offers["/count"]["streams"] and not offers["/double"]["streams"], offers
    print("hello")

    one = client.stream()
    one.send(frame(CALL, {"route": "/double", "millis_left": 30_000}, envelope(21)), end=True)
    [(kind, entry, done, body)] = await one.rest()
    assert (kind, entry, opened(body)) == (DONE, 0, 42), (kind, done, body)
    assert set(done["times"]) == {"queue", "batch", "compute"}, done
    print("call")

    large = client.stream()
    large.send(frame(CALL, {"route": "/echo"}, envelope(b"\x07" * 300_000)), end=True)
    [(kind, _, _, body)] = await large.rest()
    assert (kind, opened(body)) == (DONE, b"\x07" * 300_000)
    print("segments")

    function = client.stream()
    arguments = {"args": [3.0], "kwargs": {"factor": 3.0}}
    function.send(frame(CALL, {"route": "scale", "function": True}, envelope(arguments)), end=True)
    [(kind, _, _, body)] = await function.rest()
    assert (kind, opened(body)) == (DONE, 9.0)
    print("function")

    pack = client.stream()
    wrong = frame(CALL, {"route": "/nowhere"}, envelope(1), entry=7)
    held = frame(CALL, {"route": "/held", "millis_left": 600_000}, envelope(1), entry=9)
    pack.send(frame(CALL, {"route": "/double"}, envelope(1), entry=3), wrong, held)
    answers = {}
    for _ in range(2):
        kind, entry, header, body = await pack.frame()
        answers[entry] = (kind, header.get("kind"), header.get("started"), opened(body) if body else None)
    assert answers == {3: (DONE, None, None, 2), 7: (FAIL, "not_found", False, None)}, answers
    await asyncio.wait_for(seen(client, 1, 0), PATIENCE)
    print("pack")

    pack.send(frame(CANCEL, entry=9), frame(CALL, {"route": "/double"}, envelope(2), entry=10), end=True)
    [(kind, entry, _, body)] = await pack.rest()
    assert (kind, entry, opened(body)) == (DONE, 10, 4)
    await asyncio.wait_for(seen(client, 1, 1), PATIENCE)
    print("cancel")

    reset = client.stream()
    reset.send(frame(CALL, {"route": "/held", "millis_left": 600_000}, envelope(1)))
    await asyncio.wait_for(seen(client, 2, 1), PATIENCE)
    reset.give_up(CANCELLED)
    await asyncio.wait_for(seen(client, 2, 2), PATIENCE)
    print("reset")

    stream = client.stream()
    stream.send(frame(CALL, {"route": "/count", "credit": 2}, envelope(5)))
    outputs = []
    while (found := await stream.frame())[0] == ITEM:
        outputs.append(opened(found[3]))
        if len(outputs) % 2 == 0:
            # There is room for no more than that, so nothing else is on its way.
            assert not stream.buffer
            stream.send(frame(CREDIT, {"items": 2}))
    assert (outputs, found[0]) == ([0, 1, 2, 3, 4], DONE), (outputs, found)
    print("stream")

    garbage = client.stream()
    garbage.send(b"GET / HTTP/1.1\r\nhost: callboard\r\n\r\n", end=True)
    try:
        raise AssertionError(await garbage.rest())
    except ConnectionResetError as error:
        assert error.args == (PROTOCOL,), error
    print("garbage")


async def main(address, directory):
    host, port = address.rsplit(":", 1)
    async with connect(host, int(port), configuration=configuration(directory), create_protocol=Client) as client:
        await talk(client)


asyncio.run(main(*sys.argv[1:]))
