// A worker without any package, to be copied for another language: the protocol of docs/worker-protocol.md.
// `answer` is the stage; everything else is the same for every worker. `values.js` reads and writes the values.

const net = require("node:net");
const { Malformed, readEnvelope, readValue, writeEnvelope, writeValue } = require("./values.js");

// The echo contract of `callboard.conformance`.
function answer(input) {
  if (input === "fail") throw new Error("the input says so");
  return typeof input === "string" ? input.toUpperCase() : input;
}

// ---- Messages -------------------------------------------------------------------------------------------------------

const PROTOCOL = 1;
// The longest message of an error: many of them fit into a head.
const MAX_MESSAGE = 1000;

async function main() {
  const { head: start } = await receive(0);
  if (start.get("type") !== "start" || start.get("protocol") !== PROTOCOL) {
    send({ type: "failed", message: `this worker speaks protocol ${PROTOCOL}` });
    return exit(1);
  }
  const maxBytes = Number(start.get("max_bytes"));
  // Load a model here: batches come after `ready`.
  send({ type: "ready", protocol: PROTOCOL, worker: `Node.js ${process.version}` });
  for (;;) {
    const { head, parts } = await receive(maxBytes);
    if (head.get("type") === "batch") run(head.get("id"), parts, maxBytes);
    if (head.get("type") === "stop") return exit(0);
    // A batch is over before the `cancel` of its items is read: there is nothing to do.
  }
}

// One outcome for each item: nil and a part, or an error.
function run(id, parts, maxBytes) {
  const items = [], outputs = [];
  let room = maxBytes;
  for (const part of parts) {
    try {
      const output = writeEnvelope(answer(readEnvelope(part)));
      if (output.length > room) throw new Error("the outputs of the batch exceed max_bytes");
      room -= output.length;
      outputs.push(output);
      items.push(null);
    } catch (error) {
      items.push({ message: String(error.message).slice(0, MAX_MESSAGE), invalid: error instanceof Malformed });
    }
  }
  send({ type: "outcomes", id, items }, outputs);
}

function exit(code) {
  socket.end(() => process.exit(code));
}

// ---- Frames ---------------------------------------------------------------------------------------------------------

const MAX_HEAD_BYTES = 4 << 20;
const MAX_PARTS = 65536;

// Standard input is the socket. When it ends, this process ends; a stage that awaits is not interrupted.
const socket = new net.Socket({ fd: 0 });
socket.on("error", () => process.exit(0)).on("close", () => process.exit(0));
let wake = () => {};
socket.on("readable", () => wake());

async function receive(maxBytes) {
  const start = await exactly(8);
  const headBytes = start.readUInt32LE(0), count = start.readUInt32LE(4);
  if (headBytes > MAX_HEAD_BYTES || count > MAX_PARTS) throw new Error("a frame exceeds the limits");
  const table = await exactly(8 * count);
  const lengths = Array.from({ length: count }, (_, n) => Number(table.readBigUInt64LE(8 * n)));
  if (lengths.reduce((sum, length) => sum + length, 0) > maxBytes) throw new Error("a frame exceeds max_bytes");
  const head = readValue(await exactly(headBytes));
  const parts = [];
  for (const length of lengths) parts.push(await exactly(length));
  return { head, parts };
}

// The next bytes. At the end of the socket "close" comes instead.
async function exactly(size) {
  if (size === 0) return Buffer.alloc(0);
  for (;;) {
    const bytes = socket.read(size);
    if (bytes?.length === size) return bytes;
    await new Promise((resolve) => { wake = resolve; });
  }
}

function send(head, parts = []) {
  const encoded = writeValue(head);
  const start = Buffer.alloc(8 + 8 * parts.length);
  start.writeUInt32LE(encoded.length, 0);
  start.writeUInt32LE(parts.length, 4);
  parts.forEach((part, n) => start.writeBigUInt64LE(BigInt(part.length), 8 + 8 * n));
  socket.write(Buffer.concat([start, encoded, ...parts]));
}

main().catch((error) => {
  console.error(error.message); // a log line of the node
  process.exit(1);
});
