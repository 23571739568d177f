// A route, a function and a model, called by the client that hey-api wrote.

import { readFileSync } from "node:fs";
import { call, infer, postDigits } from "./hey/index";
import { client } from "./hey/client.gen";

async function main() {
  client.setConfig({ baseUrl: process.argv[2] });
  const seven = readFileSync("seven.b64", "utf8").trim();

  const route = await postDigits({ body: { image: seven } });
  if (!route.data) throw new Error(JSON.stringify(route.error));
  const label: string = route.data.label;

  const called = await call({ path: { name: "digits" }, body: { kwargs: { image: seven } } });
  if (!called.data) throw new Error(JSON.stringify(called.error));

  const picture = { name: "image", datatype: "BYTES", shape: [1], data: [seven], parameters: { content_type: "base64" } };
  const inferred = await infer({ path: { model: "digits" }, body: { inputs: [picture] } });
  if (!inferred.data) throw new Error(JSON.stringify(inferred.error));
  const output = inferred.data.outputs.find((output) => output.name === "label");

  console.log(label, (called.data as { label: string }).label, output?.data?.[0]);
}

main();
