// Posts a file again and again with fetch.

import { readFileSync } from "node:fs";

const [url, file, requests] = process.argv.slice(2);
const body = readFileSync(file);

for (let request = 0; request < Number(requests); request += 1) {
  try {
    const answer = await fetch(url, { method: "POST", body, headers: { "content-type": "image/png" } });
    await answer.text();
    console.log(answer.status);
  } catch (error) {
    console.log(String(error), String(error.cause));
  }
}
