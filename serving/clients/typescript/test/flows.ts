// What people do with the official OpenAI client, against any server: node build/test/flows.js
//
// BASE_URL (with /v1), API_KEY, MODEL name it; FLOWS picks some by name; WRAPPED=1 takes the client
// of `Tendril` instead of a plain one. One line a flow: its name, and "ok" or what went wrong.

import assert from "node:assert/strict";

import OpenAI from "openai";

import { Tendril } from "../src/index.js";

const { BASE_URL: baseURL = "", API_KEY: apiKey = "", MODEL: model = "", FLOWS, WRAPPED } = process.env;
const prompt = { model, prompt: "def a", max_tokens: 8, temperature: 0 };
const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: "user", content: "def a" }];
const ask = { model, messages, max_tokens: 8, temperature: 0 };
const tools: OpenAI.ChatCompletionTool[] = [
  {
    type: "function",
    function: { name: "look_up", parameters: { type: "object", properties: {} } },
  },
];

type Flow = (client: OpenAI) => Promise<void>;

const flows: Record<string, Flow> = {
  async completion(client) {
    const reply = await client.completions.create(prompt);
    assert.ok(["stop", "length"].includes(reply.choices[0]?.finish_reason ?? ""));
    const usage = reply.usage;
    assert.equal(usage?.total_tokens, (usage?.prompt_tokens ?? 0) + (usage?.completion_tokens ?? 0));
  },
  async completion_stream(client) {
    const whole = await client.completions.create(prompt);
    const stream = await client.completions.create({ ...prompt, stream: true });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.text ?? "";
    assert.equal(text, whole.choices[0]?.text);
  },
  async completion_logprobs(client) {
    const reply = await client.completions.create({ ...prompt, logprobs: 1 });
    const { tokens = [], token_logprobs = [] } = reply.choices[0]?.logprobs ?? {};
    assert.ok(tokens.length > 0);
    assert.equal(tokens.length, token_logprobs.length);
    assert.ok(token_logprobs.every((logprob) => logprob <= 0));
  },
  async completion_errors(client) {
    const once = client.withOptions({ maxRetries: 0 });
    const missing = { ...prompt, model: "no-such-model" };
    await assert.rejects(once.completions.create(missing), OpenAI.NotFoundError);
    const negative = { ...prompt, max_tokens: -1 };
    await assert.rejects(once.completions.create(negative), OpenAI.BadRequestError);
    const nobody = once.withOptions({ apiKey: "nobodys" });
    await assert.rejects(nobody.completions.create(prompt), OpenAI.AuthenticationError);
  },
  async timeout(client) {
    const hasty = client.withOptions({ timeout: 1, maxRetries: 0 });
    const long = { ...prompt, max_tokens: 100 };
    await assert.rejects(hasty.completions.create(long), OpenAI.APIConnectionTimeoutError);
  },
  async abort(client) {
    const long = { ...prompt, max_tokens: 100 };
    const stream = await client.completions.create({ ...long, stream: true });
    for await (const _ of stream) break; // aborts the request
    assert.ok(stream.controller.signal.aborted);
    const controller = new AbortController();
    const request = client.completions.create(long, { signal: controller.signal });
    controller.abort();
    await assert.rejects(request, OpenAI.APIUserAbortError);
    await client.completions.create(prompt);
  },
  async models(client) {
    const found: string[] = [];
    for await (const one of client.models.list()) found.push(one.id);
    assert.ok(found.includes(model));
  },
  async chat(client) {
    const reply = await client.chat.completions.create(ask);
    assert.equal(reply.choices[0]?.message.role, "assistant");
    assert.ok(["stop", "length"].includes(reply.choices[0]?.finish_reason ?? ""));
  },
  async chat_stream(client) {
    const whole = await client.chat.completions.create(ask);
    const options = { stream: true, stream_options: { include_usage: true } } as const;
    const stream = await client.chat.completions.create({ ...ask, ...options });
    let text = "";
    let usage: OpenAI.CompletionUsage | null | undefined;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0]?.message.content ?? "");
    assert.equal(usage?.total_tokens, whole.usage?.total_tokens);
  },
  async chat_stream_helper(client) {
    const runner = client.chat.completions.stream(ask);
    let numChunks = 0;
    for await (const _ of runner) numChunks += 1;
    assert.ok(numChunks > 0);
    assert.equal((await runner.finalMessage()).role, "assistant");
  },
  async chat_logprobs(client) {
    const reply = await client.chat.completions.create({ ...ask, logprobs: true });
    const content = reply.choices[0]?.logprobs?.content ?? [];
    assert.ok(content.length > 0);
    assert.ok(content.every((token) => token.logprob <= 0));
  },
  async chat_choices(client) {
    const reply = await client.chat.completions.create({ ...ask, n: 3, temperature: 1 });
    assert.deepEqual(reply.choices.map((choice) => choice.index).sort(), [0, 1, 2]);
  },
  async chat_tools(client) {
    const reply = await client.chat.completions.create({ ...ask, tools, tool_choice: "auto" });
    for (const call of reply.choices[0]?.message.tool_calls ?? []) {
      assert.equal(call.type, "function");
      assert.ok(call.id);
    }
  },
  async chat_errors(client) {
    const once = client.withOptions({ maxRetries: 0 });
    const missing = { ...ask, model: "no-such-model" };
    await assert.rejects(once.chat.completions.create(missing), OpenAI.NotFoundError);
    const empty = { ...ask, messages: [] };
    await assert.rejects(once.chat.completions.create(empty), OpenAI.BadRequestError);
    const nobody = once.withOptions({ apiKey: "nobodys" });
    await assert.rejects(nobody.chat.completions.create(ask), OpenAI.AuthenticationError);
  },
  async suggestion() {
    const tendril = new Tendril({ baseURL, apiKey, user: "ada" });
    const suggestion = tendril.suggestion(await tendril.openai.completions.create(prompt));
    suggestion.shown({ visibleMs: 800 });
    suggestion.acceptedPartially({ span: [0, 1] }, { granularity: "word" });
    suggestion.accepted({ method: "tab" });
    suggestion.retained(30, 1);
    suggestion.rated(4, [1, 5]);
    suggestion.sessionEnded();
    assert.equal(await tendril.close(), true);
    assert.equal(tendril.outbox.counts.accepted, 6);
    const stream = await tendril.openai.completions.create({ ...prompt, stream: true });
    assert.ok(tendril.suggestion(stream).traceId);
    stream.controller.abort();
  },
};

const client = WRAPPED ? new Tendril({ baseURL, apiKey }).openai : new OpenAI({ baseURL, apiKey });
for (const name of FLOWS?.split(",") ?? Object.keys(flows)) {
  try {
    await (flows[name] ?? (() => Promise.reject(new Error("no such flow"))))(client);
    console.log(`${name}: ok`);
  } catch (error) {
    process.exitCode = 1;
    console.log(`${name}: ${String(error).replaceAll("\n", " ")}`);
  }
}
