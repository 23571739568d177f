"""FastMCP as a client. Argument: the URL of the example."""

import asyncio
import sys

from fastmcp import Client
from fastmcp.exceptions import ToolError


async def main() -> None:
    async with Client(sys.argv[1]) as client:
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
        print("calls")
        seen = []

        async def note(done: float, total: float | None, message: str | None) -> None:
            seen.append(message)

        await client.call_tool("plan_trip", {"city": "Rome"}, progress_handler=note)
        assert "day 1" in seen, seen
        print("progress")


asyncio.run(main())
