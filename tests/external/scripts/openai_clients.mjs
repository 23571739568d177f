// OpenAI's own client and the AI SDK against the example. Argument: its base URL.
import assert from "node:assert/strict";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, streamText } from "ai";
import OpenAI from "openai";

const [base] = process.argv.slice(2);
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
console.log("openai");

const provider = createOpenAICompatible({ name: "callboard", baseURL: base });
assert.equal((await generateText({ model: provider("repeat"), prompt: "hello there" })).text, "hello there");
const stream = streamText({ model: provider("repeat"), prompt: "one two" });
assert.equal(await stream.text, "one two");
assert.equal(await stream.finishReason, "stop");
const many = await embedMany({ model: provider.textEmbeddingModel("hashing"), values: ["a", "b", "c"] });
assert.deepEqual(many.embeddings.map((vector) => vector.length), [256, 256, 256]);
console.log("ai");
