"""Version 1 of the protocol's own library, which shakes hands. Arguments: the URLs of the
example and of `mcp_app.py`, and its file of runs."""

import asyncio
import pathlib
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

EXAMPLE, APP, RUNS = sys.argv[1:]


async def fails_once() -> None:
    """No library repeats a call that has failed."""
    before = pathlib.Path(RUNS).read_text(encoding="utf-8").count("failed")
    async with streamablehttp_client(APP) as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        failed = await session.call_tool("write_failure", {})
    assert failed.isError and "the tool is broken" in failed.content[0].text, failed
    assert pathlib.Path(RUNS).read_text(encoding="utf-8").count("failed") - before == 1


async def main() -> None:
    async with streamablehttp_client(EXAMPLE) as (read, write, _), ClientSession(read, write) as session:
        hello = await session.initialize()
        assert hello.protocolVersion == "2025-11-25", hello
        listed = (await session.list_tools()).tools
        assert [tool.name for tool in listed] == ["calculate", "plan_trip", "search_handbook"], listed
        print("tools")
        result = await session.call_tool("calculate", {"expression": "2 * 3"})
        assert result.content[0].text == "6.0" and not result.isError, result
        wrong = await session.call_tool("calculate", {"expression": "x"})
        assert wrong.isError, wrong
        await fails_once()
        print("calls")
        seen = []

        async def note(done: float, total: float | None, message: str | None) -> None:
            seen.append((done, message))

        result = await session.call_tool("plan_trip", {"city": "Rome"}, progress_callback=note)
        assert (1.0, "day 1") in seen and "part 2" in result.content[0].text, (seen, result)
        print("progress")
        await session.send_ping()
        print("ping")


asyncio.run(main())
