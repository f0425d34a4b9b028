// `Tendril`: every reply of the OpenAI client becomes a suggestion, and the suggestion its events.

import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";

import OpenAI from "openai";

import { feedbackTarget } from "../src/client.js";
import {
  IllegalLifecycle,
  NoTrace,
  RetentionMeter,
  type Suggestion,
  Tendril,
  type TendrilOptions,
  byteSpan,
  measureRetention,
} from "../src/index.js";
import { FakeTendril } from "./fakeServer.js";

const ASK = { model: "m", prompt: "a" };

async function make(
  t: TestContext,
  options: Partial<TendrilOptions> = {},
): Promise<{ fake: FakeTendril; tendril: Tendril }> {
  const fake = await FakeTendril.start();
  t.after(() => fake.stop());
  return { fake, tendril: new Tendril({ baseURL: `${fake.url}/v1`, apiKey: "key", ...options }) };
}

async function makeShown(t: TestContext): Promise<{
  fake: FakeTendril;
  tendril: Tendril;
  suggestion: Suggestion;
}> {
  const made = await make(t);
  const suggestion = made.tendril.suggestion(await made.tendril.openai.completions.create(ASK));
  suggestion.shown();
  return { ...made, suggestion };
}

test("a completion becomes a suggestion", async (t) => {
  const { fake, tendril } = await make(t);
  const first = await tendril.openai.completions.create(ASK);
  const second = await tendril.openai.completions.create(ASK);
  const suggestion = tendril.suggestion(first);
  assert.deepEqual([suggestion.traceId, suggestion.policyVersion], ["trace-1", 7]);
  assert.equal(tendril.suggestion(second).traceId, "trace-2");
  assert.equal(tendril.suggestion(second, 2).traceId, "trace-2.2");
  suggestion.shown({ visibleMs: 800 });
  assert.equal(await tendril.close(), true);
  const [event] = fake.events;
  assert.equal(event?.["feedback_token"], "t-trace-1");
  assert.equal(event?.["visible_ms"], 800);
  assert.ok(!("position" in (event ?? {})));
});

test("streams and responses become suggestions", async (t) => {
  const { tendril } = await make(t);
  const stream = await tendril.openai.completions.create({ ...ASK, stream: true });
  assert.equal(tendril.suggestion(stream).traceId, "trace-1");
  const texts: string[] = [];
  for await (const chunk of stream) texts.push(chunk.choices[0]?.text ?? "");
  assert.deepEqual(texts, [" value"]);
  const { data, response } = await tendril.openai.completions.create(ASK).withResponse();
  assert.equal(tendril.suggestion(response).traceId, "trace-2");
  assert.equal(tendril.suggestion(data).traceId, "trace-2");
  const many = Array.from({ length: 5 }, () => tendril.openai.completions.create(ASK));
  for (const reply of await Promise.all(many)) {
    assert.equal(reply.id, `cmpl-${tendril.suggestion(reply).traceId}`);
  }
});

test("who asks and what is allowed travels with every request, beside the client's own", async (t) => {
  const openai = new OpenAI({ apiKey: "other", maxRetries: 7, defaultHeaders: { "x-own": "1" } });
  const options = { openai, user: "ada", sessionId: "s1", trainConsent: false };
  const { fake, tendril } = await make(t, options);
  assert.equal(tendril.openai.maxRetries, 7);
  await tendril.openai.completions.create(ASK);
  const [sent] = fake.requestHeaders;
  assert.equal(sent?.authorization, "Bearer key");
  assert.equal(sent?.["x-own"], "1");
  assert.equal(sent?.["x-tendril-user"], "ada");
  assert.equal(sent?.["x-tendril-session-id"], "s1");
  assert.equal(sent?.["x-tendril-train-consent"], "false");
  assert.equal(sent?.["x-tendril-content-consent"], "false");
});

test("a reply without a trace says so", async (t) => {
  const { fake, tendril } = await make(t);
  const other = new OpenAI({ baseURL: `${fake.url}/v1`, apiKey: "key" });
  const foreign = await other.completions.create(ASK);
  assert.throws(() => tendril.suggestion(foreign), NoTrace);
  assert.throws(() => tendril.suggestion(new Response("{}")), NoTrace);
});

test("a feedback URL is relative to the server's root", () => {
  for (const [baseURL, url, endpoint, feedbackToken] of [
    ["http://h/v1", "/v1/feedback?token=a.b-c_d", "http://h/v1/feedback", "a.b-c_d"],
    ["https://h/tendril/v1/", "/v1/feedback", "https://h/tendril/v1/feedback", undefined],
    ["http://h/v1", "https://other/fb?token=x%2By", "https://other/fb", "x+y"],
  ] as const) {
    assert.deepEqual(feedbackTarget(baseURL, url), { endpoint, feedbackToken });
  }
});

test("each method sends its event", async (t) => {
  const { fake, tendril, suggestion } = await makeShown(t);
  suggestion.acceptedPartially({ span: [0, 4] }, { granularity: "word" });
  const id = suggestion.accepted({ method: "tab" });
  suggestion.undone();
  suggestion.redone();
  suggestion.edited({ span: [1, 2] });
  suggestion.retained(30, 0.75);
  suggestion.retained(300, measureRetention("one two three", "one two"));
  suggestion.notObservable(300, "document_closed");
  suggestion.committed(3, 10);
  suggestion.copied({ share: 0.5 });
  suggestion.followedUp({ sentiment: -1 });
  suggestion.regenerated();
  suggestion.stopped();
  suggestion.voted(1);
  suggestion.rated(4, [1, 5]);
  suggestion.sessionEnded();
  assert.equal(await tendril.close(), true);
  assert.deepEqual(fake.types, [
    "suggestion.shown", "suggestion.accepted_partially", "suggestion.accepted", "edit.undone",
    "edit.redone", "edit.applied", "retention.measured", "retention.measured",
    "retention.measured", "commit.observed", "content.copied", "user.followed_up",
    "response.regenerated", "response.stopped", "feedback.vote", "feedback.rating",
    "session.ended",
  ]);
  assert.equal(fake.events[2]?.["event_id"], id);
  assert.deepEqual(fake.events.map((event) => event["client_seq"]), fake.events.map((_, i) => i + 1));
  assert.equal(new Set(fake.events.map((event) => event["event_id"])).size, fake.events.length);
  assert.deepEqual(fake.events[1]?.["span"], [0, 4]);
});

test("an impossible event throws and is not sent", async (t) => {
  for (const steps of [
    ["shown", "accepted", "rejected"],
    ["accepted", "shown"],
    ["rejected", "accepted"],
    ["ignored", "rejected"],
    ["rejected", "undone"],
    ["accepted", "undone", "undone"],
    ["accepted", "undone", "accepted"],
    ["accepted", "redone"],
    ["edited"],
  ] as const) {
    const { fake, tendril, suggestion } = await makeShown(t);
    for (const step of steps.slice(0, -1)) suggestion[step]();
    assert.throws(() => suggestion[steps[steps.length - 1] ?? "shown"](), IllegalLifecycle);
    await tendril.close();
    assert.equal(fake.events.length, steps.length);
  }
});

test("values out of range throw", async (t) => {
  const { suggestion } = await makeShown(t);
  assert.throws(() => suggestion.acceptedPartially({ share: 1.5 }), RangeError);
  assert.equal(suggestion.state, "shown");
  suggestion.accepted();
  assert.throws(() => suggestion.retained(30, Number.NaN), RangeError);
  assert.throws(() => suggestion.rated(6, [1, 5]), RangeError);
});

test("a span counts bytes", () => {
  assert.deepEqual(byteSpan("é = 1", 0, 3), [0, 4]);
  assert.deepEqual(byteSpan("a☃b", 1, 2), [1, 4]);
});

test("retention is measured at 30 s and 5 min, if there is something to see", async (t) => {
  const { fake, tendril, suggestion } = await makeShown(t);
  suggestion.accepted();
  let nowMs = 0;
  const appointments: { dueMs: number; callback: () => void }[] = [];
  const meter = new RetentionMeter(
    (afterMs, callback) => {
      const appointment = { dueMs: nowMs + afterMs, callback };
      appointments.push(appointment);
      return () => appointments.splice(appointments.indexOf(appointment), 1);
    },
    () => nowMs,
  );
  let place: string | undefined = "one two";
  meter.watch(suggestion, "one two", () => place);
  assert.deepEqual(appointments.map((one) => one.dueMs), [30_000, 300_000]);
  nowMs = 30_000;
  appointments[0]?.callback();
  place = undefined;
  nowMs = 300_000;
  appointments[1]?.callback();
  nowMs = 600_001;
  appointments[1]?.callback(); // a laptop that slept
  meter.watch(suggestion, "one two", () => place);
  meter.forget(suggestion);
  assert.equal(appointments.length, 0);
  await tendril.close();
  const seen = fake.events.slice(2).map((event) => event["value"] ?? event["reason"]);
  assert.deepEqual(seen, [1, "document_closed", "too_late"]);
});
