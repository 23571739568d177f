"""The protocol's own library, version 2, in every mode. Arguments: the URLs of the example and of `mcp_app.py`, and its
file of runs."""

import asyncio
import pathlib
import sys
import time

from mcp import Client, MCPError

EXAMPLE, APP, RUNS = sys.argv[1:]


async def tools(mode: str, version: str) -> None:
    async with Client(EXAMPLE, mode=mode) as client:
        assert client.protocol_version == version, client.protocol_version
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == ["calculate", "plan_trip", "search_handbook"], listed
        assert "every calculation" in listed[0].description
        assert listed[0].input_schema["required"] == ["expression"], listed[0].input_schema
        result = await client.call_tool("calculate", {"expression": "(1 + 2) * 3.5"})
        assert result.content[0].text == "10.5" and not result.is_error, result
        found = await client.call_tool("search_handbook", {"query": "days of vacation"})
        if mode == "auto":
            assert result.structured_content == 10.5, result
            assert found.structured_content[0]["title"] == "vacation", found
        assert '"title":"vacation"' in found.content[0].text, found
        wrong = await client.call_tool("calculate", {"expression": "import os"})
        assert wrong.is_error and "cannot be calculated" in wrong.content[0].text, wrong
        missing = await client.call_tool("search_handbook", {"most": 1})
        assert missing.is_error and "query" in missing.content[0].text, missing
        assert (await client.list_prompts()).prompts == []
        assert (await client.list_resources()).resources == []


async def errors() -> None:
    async with Client(EXAMPLE) as client:
        try:
            await client.call_tool("calculator", {})
        except MCPError as error:
            assert error.error.code == -32602 and "did you mean `calculate`?" in error.error.message, error
        else:
            raise AssertionError("there is no such tool")


async def fails_once(mode: str) -> None:
    """No library repeats a call that has failed."""
    before = pathlib.Path(RUNS).read_text(encoding="utf-8").count("failed")
    async with Client(APP, mode=mode) as client:
        failed = await client.call_tool("write_failure", {})
    assert failed.is_error and "the tool is broken" in failed.content[0].text, failed
    assert pathlib.Path(RUNS).read_text(encoding="utf-8").count("failed") - before == 1


async def progress(mode: str) -> None:
    seen = []

    async def note(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, total, message))

    async with Client(EXAMPLE, mode=mode) as client:
        result = await client.call_tool("plan_trip", {"city": "Rome", "days": 2}, progress_callback=note)
    assert (1.0, 2.0, "day 1") in seen and (2.0, 2.0, "day 2") in seen, seen
    assert result.content[0].text == "Day 1: see Rome, part 1.\nDay 2: see Rome, part 2.\n", result


async def noted(word: str) -> None:
    end = time.monotonic() + 30
    while word not in open(RUNS, encoding="utf-8").read().splitlines():
        assert time.monotonic() < end, f"{word!r} was not noted"
        await asyncio.sleep(0.02)


async def cancelled() -> None:
    """Since 2026-07-28 a client cancels by closing the response."""
    began = asyncio.Event()

    async def note(done: float, total: float | None, message: str | None) -> None:
        began.set()

    async with Client(APP) as client:
        call = asyncio.create_task(client.call_tool("watch_endless", {}, progress_callback=note))
        await began.wait()
        call.cancel()
        await noted("endless ended")


async def lost() -> None:
    """Before, a lost connection is no cancel of a call that may not run again."""
    async with Client(APP, mode="legacy") as client:
        call = asyncio.create_task(client.call_tool("write_order", {"count": 1}))
        await noted("order begun")
        call.cancel()
    await noted("order ended")


async def main() -> None:
    await tools("auto", "2026-07-28")
    await tools("legacy", "2025-11-25")
    print("tools")
    await errors()
    await fails_once("auto")
    await fails_once("legacy")
    print("errors")
    await progress("auto")
    await progress("legacy")
    print("progress")
    await cancelled()
    print("cancelled")
    await lost()
    print("lost")


asyncio.run(main())
