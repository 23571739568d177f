// A route, a function and a model, called by the client that openapi-generator's typescript-fetch wrote.

import { readFileSync } from "node:fs";
import { Configuration, ModelsApi, RoutesApi } from "./typescript-fetch/index";

async function main() {
  const configuration = new Configuration({ basePath: process.argv[2] });
  const [routes, models] = [new RoutesApi(configuration), new ModelsApi(configuration)];
  const seven = readFileSync("seven.b64", "utf8").trim();

  const route = await routes.postDigits({ image: { image: seven } });
  const called = await routes.call({ name: "digits", functionCall: { kwargs: { image: seven } } });
  const picture = { name: "image", datatype: "BYTES", shape: [1], data: [seven], parameters: { content_type: "base64" } };
  const inferred = await models.infer({ model: "digits", inferenceRequest: { inputs: [picture] } });
  const output = inferred.outputs.find((output) => output.name === "label");

  console.log(route.label, called.label, output?.data?.[0]);
}

main();
