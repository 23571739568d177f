// A route, a function and a model, called by openapi-fetch with the types that openapi-typescript wrote.

import { readFileSync } from "node:fs";
import createClient from "openapi-fetch";
import type { paths } from "./schema.js";

const client = createClient<paths>({ baseUrl: process.argv[2] });
const seven = readFileSync(new URL("../seven.b64", import.meta.url), "utf8").trim();

const route = await client.POST("/digits", { body: { image: seven } });
if (route.error) throw new Error(route.error.detail);
const label: string = route.data.label;

const called = await client.POST("/v1/call/{name}", {
  params: { path: { name: "digits" } },
  body: { kwargs: { image: seven } },
});
if (called.error) throw new Error(called.error.detail);
const function_label = (called.data as { label: string }).label;

const inferred = await client.POST("/v2/models/{model}/infer", {
  params: { path: { model: "digits" } },
  body: {
    inputs: [
      { name: "image", datatype: "BYTES", shape: [1], data: [seven], parameters: { content_type: "base64" } },
    ],
  },
});
if (inferred.error) throw new Error(inferred.error.error);
const output = inferred.data.outputs.find((output) => output.name === "label");

const wrong = await client.POST("/digits", { body: { image: "AAAA" } });
if (wrong.error?.kind !== "invalid_input") throw new Error(JSON.stringify(wrong));

console.log(label, function_label, output?.data?.[0]);
