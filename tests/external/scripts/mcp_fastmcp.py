"""FastMCP as a client. Arguments: the URLs of the example and of `mcp_app.py`, and its file of runs."""

import asyncio
import pathlib
import sys

from fastmcp import Client
from fastmcp.exceptions import ToolError

EXAMPLE, APP, RUNS = sys.argv[1:]


async def fails_once() -> None:
    """No library repeats a call that has failed."""
    before = pathlib.Path(RUNS).read_text(encoding="utf-8").count("failed")
    async with Client(APP) as client:
        failed = await client.call_tool("write_failure", {}, raise_on_error=False)
    assert failed.is_error and "the tool is broken" in failed.content[0].text, failed
    assert pathlib.Path(RUNS).read_text(encoding="utf-8").count("failed") - before == 1


async def main() -> None:
    async with Client(EXAMPLE) as client:
        names = [tool.name for tool in await client.list_tools()]
        assert names == ["calculate", "plan_trip", "search_handbook"], names
        print("tools")
        result = await client.call_tool("calculate", {"expression": "2 * 3"})
        assert result.content[0].text == "6.0", result
        try:
            await client.call_tool("calculate", {"expression": "x"})
        except ToolError as error:
            assert "cannot be calculated" in str(error), error
        else:
            raise AssertionError("it cannot be calculated")
        await fails_once()
        print("calls")
        seen = []

        async def note(done: float, total: float | None, message: str | None) -> None:
            seen.append(message)

        await client.call_tool("plan_trip", {"city": "Rome"}, progress_handler=note)
        assert "day 1" in seen, seen
        print("progress")


asyncio.run(main())
