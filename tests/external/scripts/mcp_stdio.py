"""Hosts that start a server and talk to it by lines: the protocol's own library, both versions. Arguments: the program
with its arguments, as JSON, and the file in which its tools note what ran."""

import asyncio
import json
import os
import pathlib
import sys
import time

import mcp

COMMAND, RUNS = json.loads(sys.argv[1]), sys.argv[2]
SERVER = mcp.StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=dict(os.environ))


def words():
    return pathlib.Path(RUNS).read_text(encoding="utf-8").split("\n")


async def noted(word, before):
    """Waits until `word` was noted once more."""
    end = time.monotonic() + 30
    while words().count(word) == before:
        assert time.monotonic() < end, f"{word!r} was not noted"
        await asyncio.sleep(0.02)


async def use(call):
    """`call` calls a tool; what it answers has `content`."""
    assert (await call("test_simple_text", {})).content[0].text.startswith("This is a simple text")
    failed = await call("test_error_handling", {})
    assert getattr(failed, "is_error", None) or getattr(failed, "isError", None), failed
    seen = []

    async def note(done, total, message):
        seen.append((done, total))

    result = await call("test_tool_with_progress", {}, progress_callback=note)
    assert result.content[0].text == "done", result
    assert seen[:3] == [(0.0, 100.0), (50.0, 100.0), (100.0, 100.0)], seen

    began = asyncio.Event()

    async def begin(done, total, message):
        began.set()

    before = words().count("endless ended")
    running = asyncio.create_task(call("watch_endless", {}, progress_callback=begin))
    await began.wait()
    running.cancel()
    await noted("endless ended", before)


async def with_the_new_library():
    for mode, version in (("auto", "2026-07-28"), ("legacy", "2025-11-25")):
        async with mcp.Client(SERVER, mode=mode) as client:
            assert client.protocol_version == version, client.protocol_version
            assert "watch_endless" in [tool.name for tool in (await client.list_tools()).tools]
            await use(client.call_tool)


async def with_the_old_library():
    async with mcp.stdio_client(SERVER) as (reader, writer), mcp.ClientSession(reader, writer) as session:
        await session.initialize()
        assert "watch_endless" in [tool.name for tool in (await session.list_tools()).tools]
        assert (await session.call_tool("test_simple_text", {})).content[0].text.startswith("This is a simple text")


async def by_hand():
    """Nothing but messages is on stdout, and the end of stdin ends a call, the program and all that it has started."""
    pipe = asyncio.subprocess.PIPE
    program = await asyncio.create_subprocess_exec(*COMMAND, stdin=pipe, stdout=pipe, env=dict(os.environ))
    version = {"protocolVersion": "2026-07-28", "clientCapabilities": {}}
    version = {f"io.modelcontextprotocol/{name}": value for name, value in version.items()}

    def ask(number, method, **params):
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params | {"_meta": version}}
        program.stdin.write(json.dumps(message).encode() + b"\n")

    ask(1, "tools/call", name="test_noise", arguments={})
    answer = json.loads(await program.stdout.readline())
    assert answer["result"]["content"][0]["text"] == "said", answer
    before = words().count("order begun")
    ask(2, "tools/call", name="write_order", arguments={"count": 1})
    await noted("order begun", before)
    ask(3, "tools/call", name="watch_endless", arguments={})
    program.stdin.close()
    # An answer that is nearly ready is written; the endless one is cancelled.
    lines = [json.loads(line) async for line in program.stdout]
    assert [line["id"] for line in lines] == [2], lines
    assert await asyncio.wait_for(program.wait(), 10) == 0
    if "--url" not in COMMAND:
        worker = [word.split()[1] for word in words() if word.startswith("process ")][-1]
        end = time.monotonic() + 10
        while pathlib.Path("/proc", worker).exists():
            assert time.monotonic() < end, f"process {worker} is still there"
            await asyncio.sleep(0.02)


async def main():
    if hasattr(mcp, "Client"):
        await with_the_new_library()
        print("both eras")
        await by_hand()
        print("by hand")
    else:
        await with_the_old_library()
        print("handshake")


asyncio.run(main())
