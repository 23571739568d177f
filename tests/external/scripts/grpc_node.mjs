// grpc-js with the messages of this repository. Arguments: the address of the server, the directory of the .proto files.
import assert from "node:assert/strict";
import { join } from "node:path";

import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const [address, protos] = process.argv.slice(2);
const files = ["inference.proto", "callboard.proto", "health.proto"].map((file) => join(protos, file));
const { inference, callboard, grpc: own } = grpc.loadPackageDefinition(loadSync(files, { longs: Number, enums: String }));

// It repeats what was not started: UNAVAILABLE.
const retries = {
  "grpc.service_config": JSON.stringify({
    methodConfig: [
      {
        name: [{}],
        retryPolicy: {
          maxAttempts: 4,
          initialBackoff: "0.01s",
          maxBackoff: "0.1s",
          backoffMultiplier: 2,
          retryableStatusCodes: ["UNAVAILABLE"],
        },
      },
    ],
  }),
};
const credentials = grpc.credentials.createInsecure();
const models = new inference.GRPCInferenceService(address, credentials, retries);
const routes = new callboard.v1.Inference(address, credentials, retries);
const health = new own.health.v1.Health(address, credentials);

const unary = (client, method, request, options = {}) =>
  new Promise((resolve, reject) => {
    client[method](request, new grpc.Metadata(), options, (error, reply) => (error ? reject(error) : resolve(reply)));
  });
const refused = (promise, code, words) =>
  assert.rejects(promise, (error) => {
    assert.equal(grpc.status[error.code], code, error.message);
    assert.match(error.details, words);
    return true;
  });
const bytes = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength);
const infer = (model, name, datatype, shape, array, id = "") => ({
  modelName: model,
  id,
  inputs: [{ name, datatype, shape }],
  rawInputContents: [bytes(array)],
});
const doubles = (raw) => [...new Float64Array(new Uint8Array(raw).buffer)];
const metric = async (line) => {
  const page = await (await fetch(`http://${address}/metrics`)).text();
  return Number(page.split("\n").find((text) => text.startsWith(`${line} `))?.split(" ")[1] ?? 0);
};
const idle = async () => {
  const end = Date.now() + 20_000;
  while ((await metric("callboard_in_flight")) !== 0) {
    assert(Date.now() < end, "a call is in flight");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
};

// Unary, also of a mebibyte, and compressed.
assert.equal((await unary(health, "Check", { service: "" })).status, "SERVING");
assert.equal((await unary(models, "ServerMetadata", {})).name, "callboard");
const double = infer("number", "input", "FP64", [1], new Float64Array([21]), "a");
const doubled = await unary(models, "ModelInfer", double);
assert.deepEqual([doubled.id, doubles(doubled.rawOutputContents[0])], ["a", [42]]);
const large = new Float32Array(1 << 18).map((_, index) => index);
const request = infer("any", "x", "FP32", [512, 512], large);
for (const options of [{}, { "grpc.default_compression_algorithm": 2 }]) {
  const client = new inference.GRPCInferenceService(address, credentials, options);
  const [same] = (await unary(client, "ModelInfer", request)).rawOutputContents;
  assert(bytes(large).equals(Buffer.from(same)));
  client.close();
}
const called = await unary(routes, "Call", { route: "/number", body: Buffer.from("21") });
assert.deepEqual([called.contentType, called.body.toString()], ["application/json", "42.0"]);
console.log("unary");

// Streams: a model that streams, one that does not, and a route.
const responses = await new Promise((resolve, reject) => {
  const all = [];
  const stream = models.ModelStreamInfer();
  stream.on("data", (data) => all.push(data));
  stream.on("error", reject);
  stream.on("end", () => resolve(all));
  stream.write({ ...double, id: "first" });
  stream.write(infer("nobody", "input", "FP64", [1], new Float64Array([1]), "second"));
  stream.write(infer("count", "to", "UINT64", [1], new BigUint64Array([3n]), "third"));
  stream.end();
});
const outcomes = responses.map(({ inferResponse, errorMessage }) => [inferResponse?.id, errorMessage ? "error" : "ok"]);
// What answers once is answered in order. The outputs of a model that streams come between.
assert.deepEqual(
  outcomes.filter(([id]) => id !== "third"),
  [
    ["first", "ok"],
    ["second", "error"],
  ],
);
const streamed = responses.filter(({ inferResponse }) => inferResponse?.id === "third");
assert.deepEqual(
  streamed.map(({ inferResponse }) => Number(new BigUint64Array(new Uint8Array(inferResponse.rawOutputContents[0]).buffer)[0])),
  [1, 2, 3],
);
const counted = [];
for await (const reply of routes.Stream({ route: "/count", body: Buffer.from('{"to": 3}') })) {
  counted.push(JSON.parse(reply.body).number);
}
assert.deepEqual(counted, [1, 2, 3]);
const failing = [];
await refused(
  (async () => {
    for await (const reply of routes.Stream({ route: "/count", body: Buffer.from('{"to": 102}') })) {
      failing.push(reply);
    }
  })(),
  "UNKNOWN",
  /count that far/,
);
assert.equal(failing.length, 100);
console.log("streams");

// Deadlines and cancellation, which free the permit of the call.
const nap = infer("nap", "input", "FP64", [1], new Float64Array([60]));
await refused(unary(models, "ModelInfer", nap, { deadline: Date.now() + 200 }), "DEADLINE_EXCEEDED", /./);
await idle();
const cancelled = new Promise((resolve, reject) => {
  const call = models.ModelInfer(nap, (error) => (error ? reject(error) : resolve()));
  const end = Date.now() + 20_000;
  // It runs when it is cancelled.
  const look = async () =>
    (await metric("callboard_in_flight")) === 0 && Date.now() < end ? setTimeout(look, 10) : call.cancel();
  look();
});
await refused(cancelled, "CANCELLED", /./);
await idle();
console.log("cancelled");

// Statuses, and a failure that is not repeated.
await refused(unary(models, "ModelInfer", { ...double, modelName: "nobody" }), "NOT_FOUND", /nobody/);
await refused(unary(models, "ModelInfer", { ...double, rawInputContents: [] }), "INVALID_ARGUMENT", /input/);
const shared = new Promise((resolve, reject) => {
  const [path, same] = ["/inference.GRPCInferenceService/SystemSharedMemoryStatus", (message) => message];
  models.makeUnaryRequest(path, same, same, Buffer.alloc(0), (error) => (error ? reject(error) : resolve()));
});
await refused(shared, "UNIMPLEMENTED", /SystemSharedMemoryStatus/);
await refused(unary(routes, "Call", { route: "/nobody", body: Buffer.from("1") }), "NOT_FOUND", /nobody/);
await refused(unary(routes, "Call", { route: "/number", body: Buffer.from("[]") }), "INVALID_ARGUMENT", /./);
const failed = 'callboard_requests_total{route="/fail",outcome="failed"}';
const before = await metric(failed);
await refused(unary(models, "ModelInfer", { ...double, modelName: "fail" }), "UNKNOWN", /unwell/);
assert.equal(await metric(failed), before + 1);
console.log("statuses");
[models, routes, health].forEach((client) => client.close());
