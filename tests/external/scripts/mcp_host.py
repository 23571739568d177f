"""A desktop host, by the configuration below a program of `callboard examples`. Argument: the program."""

import asyncio
import json
import os
import pathlib
import sys

from mcp import Client, StdioServerParameters

program = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
configuration = json.loads("".join(line[2:] for line in program[program.index("\n# {\n") + 1 :].splitlines()))
(server,) = configuration["mcpServers"].values()
parameters = StdioServerParameters(
    command=server["command"], args=server["args"], env={**os.environ, **server.get("env", {})}
)


async def main() -> None:
    async with Client(parameters) as client:
        print([tool.name for tool in (await client.list_tools()).tools])
        print((await client.call_tool("shout", {"text": "hi"})).content[0].text)


asyncio.run(main())
