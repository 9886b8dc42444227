// The Node clients against a gateway: node clients.mjs URL
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const url = process.argv[2];
const model = "moonshotai/Kimi-K3";
const messages = [{ role: "user", content: "Write a one-sentence readiness check." }];
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "unused", maxRetries: 0 });

const whole = await openai.chat.completions.create({ model, messages });
const said = whole.choices[0].message;
assert.ok(said.content && said.reasoning_content);

let content = "";
const stream = await openai.chat.completions.create({ model, messages, stream: true });
for await (const chunk of stream) content += chunk.choices[0]?.delta.content ?? "";
assert.equal(content, said.content);

const tools = [{ type: "function", function: { name: "get_weather", parameters: schema } }];
const calls = await openai.chat.completions.stream({ model, messages, tools }).finalChatCompletion();
assert.equal(calls.choices[0].finish_reason, "tool_calls");
assert.ok(JSON.parse(calls.choices[0].message.tool_calls[0].function.arguments).city !== undefined);

const response = await openai.responses.create({ model, input: messages[0].content });
assert.equal(response.output_text, said.content);
let text = "";
for await (const event of await openai.responses.create({ model, input: messages[0].content, stream: true }))
  if (event.type === "response.output_text.delta") text += event.delta;
assert.equal(text, said.content);

await assert.rejects(openai.chat.completions.create({ model: "nope", messages }), (error) => {
  assert.ok(error instanceof OpenAI.NotFoundError);
  assert.equal(error.code, "model_not_found");
  return true;
});

const message = await anthropic.messages.create({ model, messages, max_tokens: 500 });
assert.deepEqual(message.content.map((block) => block.type), ["thinking", "text"]);
const final = await anthropic.messages.stream({ model, messages, max_tokens: 500 }).finalMessage();
assert.equal(final.content[1].text, message.content[1].text);
const tool = { name: "get_weather", input_schema: schema };
const used = await anthropic.messages.stream({ model, messages, max_tokens: 500, tools: [tool] }).finalMessage();
assert.equal(used.stop_reason, "tool_use");
assert.ok("city" in used.content.find((block) => block.type === "tool_use").input);
const counted = await anthropic.messages.countTokens({ model, messages });
assert.equal(counted.input_tokens, message.usage.input_tokens + message.usage.cache_read_input_tokens);
await assert.rejects(anthropic.messages.create({ model: "nope", messages, max_tokens: 5 }), Anthropic.NotFoundError);
console.log("ok");
