// Both clients of the protocol in TypeScript. Arguments: the URLs of the example and of `mcp_app.py`, and its file of
// runs.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { Client as NewClient, StreamableHTTPClientTransport as NewTransport } from "@modelcontextprotocol/client";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [url, app, runs] = process.argv.slice(2);

async function uses(client, transport) {
  await client.connect(transport);
  const { tools } = await client.listTools();
  assert.deepEqual(tools.map((tool) => tool.name), ["calculate", "plan_trip", "search_handbook"]);
  const result = await client.callTool({ name: "calculate", arguments: { expression: "2 * 3" } });
  assert.equal(result.content[0].text, "6.0");
  const wrong = await client.callTool({ name: "calculate", arguments: { expression: "x" } });
  assert.equal(wrong.isError, true);
  await assert.rejects(client.callTool({ name: "absent", arguments: {} }), { code: -32602 });
  const seen = [];
  const trip = { name: "plan_trip", arguments: { city: "Rome" } };
  const onprogress = (progress) => seen.push(progress.message);
  const planned = client instanceof NewClient
    ? await client.callTool(trip, { onprogress })
    : await client.callTool(trip, undefined, { onprogress });
  assert.ok(seen.includes("day 1") && planned.content[0].text.includes("part 2"), JSON.stringify([seen, planned]));
  await client.close();
}

// Neither repeats a call that has failed.
async function failsOnce(client, transport) {
  const noted = () => readFileSync(runs, "utf8").split("failed").length;
  const before = noted();
  await client.connect(transport);
  const failed = await client.callTool({ name: "write_failure", arguments: {} });
  assert.ok(failed.isError && failed.content[0].text.includes("the tool is broken"), JSON.stringify(failed));
  assert.equal(noted() - before, 1);
  await client.close();
}

const info = { name: "callboard-test", version: "1" };
await uses(new Client(info), new StreamableHTTPClientTransport(new URL(url)));
await failsOnce(new Client(info), new StreamableHTTPClientTransport(new URL(app)));
console.log("sdk");
await uses(new NewClient(info), new NewTransport(new URL(url)));
await failsOnce(new NewClient(info), new NewTransport(new URL(app)));
console.log("client");
