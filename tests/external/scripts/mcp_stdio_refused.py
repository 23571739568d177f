"""A host whose bridge has no key learns why. Argument: the program with its arguments, as JSON."""

import asyncio
import json
import sys

import mcp

COMMAND = json.loads(sys.argv[1])


async def main():
    server = mcp.StdioServerParameters(command=COMMAND[0], args=COMMAND[1:])
    async with mcp.stdio_client(server) as (reader, writer), mcp.ClientSession(reader, writer) as session:
        try:
            await session.initialize()
        except mcp.McpError as error:
            assert "key" in error.error.message, error
            print("refused")


asyncio.run(main())
