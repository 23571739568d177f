// OpenAI's own client and the AI SDK. Arguments: the base URLs of the example and of models in trouble, and the file in
// which these note what ran.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, streamText } from "ai";
import OpenAI from "openai";

const [base, trouble, runs] = process.argv.slice(2);

// A model that fails is called this often.
async function runsTimes(times, call) {
  const noted = () => readFileSync(runs, "utf8").split("fails").length;
  const before = noted();
  await assert.rejects(call(), /the model is broken/);
  assert.equal(noted() - before, times);
}

const messages = [{ role: "user", content: "one two three" }];

const client = new OpenAI({ baseURL: base, apiKey: "none" });
const whole = await client.chat.completions.create({ model: "repeat", messages });
assert.equal(whole.choices[0].message.content, "one two three");
let text = "";
let end;
for await (const chunk of await client.chat.completions.create({ model: "repeat", messages, stream: true })) {
  text += chunk.choices[0].delta.content ?? "";
  end = chunk.choices[0].finish_reason;
}
assert.deepEqual([text, end], ["one two three", "stop"]);
const { data } = await client.embeddings.create({ model: "hashing", input: ["a", "b"] });
assert.deepEqual(data.map((entry) => entry.embedding.length), [256, 256]);
await assert.rejects(client.chat.completions.create({ model: "absent", messages }), { code: "model_not_found" });
const troubled = new OpenAI({ baseURL: trouble, apiKey: "none" });
await runsTimes(1, () => troubled.chat.completions.create({ model: "fails", messages }));
console.log("openai");

const provider = createOpenAICompatible({ name: "callboard", baseURL: base });
assert.equal((await generateText({ model: provider("repeat"), prompt: "hello there" })).text, "hello there");
const stream = streamText({ model: provider("repeat"), prompt: "one two" });
assert.equal(await stream.text, "one two");
assert.equal(await stream.finishReason, "stop");
const many = await embedMany({ model: provider.textEmbeddingModel("hashing"), values: ["a", "b", "c"] });
assert.deepEqual(many.embeddings.map((vector) => vector.length), [256, 256, 256]);
const broken = createOpenAICompatible({ name: "callboard", baseURL: trouble });
// Its own retries read no header. They can be switched off.
await runsTimes(3, () => generateText({ model: broken("fails"), prompt: "hi" }));
await runsTimes(1, () => generateText({ model: broken("fails"), prompt: "hi", maxRetries: 0 }));
console.log("ai");
