// Refused requests and good ones in turn on one kept-alive connection: no good one may be lost. Prints the good answers.

import http from "node:http";

const [url, requests] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
const refusals = [["/nowhere", "application/json"], ["/readyz", "application/json"], ["/digits", "application/zip"]];

function send(method, path, headers, pieces) {
  return new Promise((resolve, reject) => {
    const request = http.request(url + path, { method, headers, agent }, (answer) => {
      answer.resume();
      answer.on("end", () => resolve(answer.statusCode));
    });
    request.on("error", reject);
    request.flushHeaders();
    // A moment later, in a segment of its own.
    setImmediate(() => {
      pieces.forEach((piece) => request.write(piece));
      request.end();
    });
  });
}

let good = 0;
for (let number = 0; number < Number(requests); number += 1) {
  const [path, type] = refusals[number % refusals.length];
  const body = Buffer.alloc(1000, "x");
  const length = number % 5 === 4 ? {} : { "content-length": 1000 };
  const status = await send("POST", path, { "content-type": type, ...length }, [body]);
  if (![404, 405, 415].includes(status)) throw new Error(`status ${status}`);
  good += (await send("GET", "/livez", {}, [])) === 200 ? 1 : 0;
}
agent.destroy();
console.log(good);
