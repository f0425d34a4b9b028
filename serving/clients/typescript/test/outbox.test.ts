// The outbox: every event arrives once, or is given up for a reason that was told.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";

import { retryAfterMs } from "../src/delivery.js";
import { FileStore } from "../src/fileStore.js";
import {
  type Drop,
  type EventStore,
  MemoryStore,
  Outbox,
  type OutboxOptions,
  type TendrilEvent,
  WebStorageStore,
} from "../src/index.js";
import { FakeTendril, waitFor } from "./fakeServer.js";

async function makeFake(t: TestContext): Promise<FakeTendril> {
  const fake = await FakeTendril.start();
  t.after(() => fake.stop());
  return fake;
}

function makeOutbox(options: OutboxOptions = {}): Outbox {
  return new Outbox({ backoffMs: 10, maxBackoffMs: 50, ...options });
}

function makeEvent(number: number, overrides: Partial<TendrilEvent> = {}): TendrilEvent {
  return {
    event_id: `e${number}`,
    trace_id: "t1",
    type: "suggestion.shown",
    client_seq: number,
    client_time: 1000,
    client_monotonic_s: 5,
    ...overrides,
  };
}

/** `localStorage`, whose contents outlive its object. */
class FakeStorage implements Storage {
  [name: string]: unknown;
  readonly #entries: Map<string, string>;
  constructor(entries: Map<string, string>) {
    this.#entries = entries;
  }
  get length(): number {
    return this.#entries.size;
  }
  key(index: number): string | null {
    return [...this.#entries.keys()][index] ?? null;
  }
  getItem(key: string): string | null {
    return this.#entries.get(key) ?? null;
  }
  setItem(key: string, value: string): void {
    this.#entries.set(key, value);
  }
  removeItem(key: string): void {
    this.#entries.delete(key);
  }
  clear(): void {
    this.#entries.clear();
  }
}

/** Stores that last: each call opens the same one anew. */
function lasting(t: TestContext): Record<string, () => EventStore> {
  const entries = new Map([["somebody else's", "x"]]);
  const folder = mkdtempSync(join(tmpdir(), "outbox-"));
  t.after(() => rmSync(folder, { recursive: true }));
  return {
    web: () => new WebStorageStore(new FakeStorage(entries)),
    file: () => new FileStore(folder),
  };
}

test("events arrive in order as they were put", async (t) => {
  const fake = await makeFake(t);
  const outbox = makeOutbox();
  for (let i = 1; i <= 5; i++) outbox.put(makeEvent(i), `${fake.url}/v1/feedback`);
  assert.equal(await outbox.close(), true);
  assert.deepEqual(fake.events[0], makeEvent(1));
  assert.deepEqual(fake.events.map((event) => event["event_id"]), ["e1", "e2", "e3", "e4", "e5"]);
  assert.equal(outbox.counts.accepted, 5);
});

for (const status of [408, 429, 500, 503]) {
  test(`status ${status} passes: the event is sent until it is taken`, async (t) => {
    const fake = await makeFake(t);
    fake.script = [{ status }, { status }, { status }];
    const outbox = makeOutbox();
    outbox.put(makeEvent(1), `${fake.url}/v1/feedback`);
    await waitFor(() => outbox.counts.accepted === 1);
    assert.deepEqual(fake.batchSizes, [1, 1, 1, 1]);
    assert.equal(fake.events.length, 1);
  });
}

test("an unreachable server and an answer that is not Tendril's are no delivery", async (t) => {
  const fake = await makeFake(t);
  fake.script = [{ status: 200, body: "<html>" }, { status: 200, body: "{}" }];
  let numCalls = 0;
  const outbox = makeOutbox({
    fetch: (input, init) => {
      numCalls += 1;
      return numCalls === 1 ? Promise.reject(new TypeError("fetch failed")) : fetch(input, init);
    },
  });
  outbox.put(makeEvent(1), `${fake.url}/v1/feedback`);
  await waitFor(() => outbox.counts.accepted === 1);
  assert.equal(numCalls, 4);
});

test("a refused event is dropped with its reason, and the others arrive", async (t) => {
  const fake = await makeFake(t);
  fake.refusals = { "edit.undone": "permission_error" };
  const drops: Drop[] = [];
  const outbox = makeOutbox({ onDrop: (drop) => drops.push(drop) });
  outbox.put(makeEvent(1, { type: "edit.undone" }), `${fake.url}/v1/feedback`);
  outbox.put(makeEvent(2), `${fake.url}/v1/feedback`);
  assert.equal(await outbox.close(), true);
  assert.deepEqual(fake.types, ["suggestion.shown"]);
  assert.deepEqual([outbox.counts.refused, outbox.counts.accepted], [1, 1]);
  assert.equal(drops[0]?.waiting.event.event_id, "e1");
  assert.match(drops[0]?.reason ?? "", /permission_error/);
});

test("an event refused for now stays", async (t) => {
  const fake = await makeFake(t);
  fake.refusals = { "edit.undone": "service_unavailable_error" };
  const outbox = makeOutbox();
  outbox.put(makeEvent(1, { type: "edit.undone" }), `${fake.url}/v1/feedback`);
  outbox.put(makeEvent(2), `${fake.url}/v1/feedback`);
  await waitFor(() => fake.batchSizes.length > 3);
  assert.equal(outbox.numPending, 1);
  fake.refusals = {};
  await waitFor(() => outbox.numPending === 0);
  assert.deepEqual([outbox.counts.refused, fake.events.length], [0, 2]);
});

test("a batch refused as a whole is halved down to the event to blame", async (t) => {
  const fake = await makeFake(t);
  const drops: Drop[] = [];
  const outbox = makeOutbox({
    onDrop: (drop) => drops.push(drop),
    fetch: (input, init) =>
      String(init?.body).includes('"e3"')
        ? Promise.resolve(new Response("too large", { status: 413 }))
        : fetch(input, init),
  });
  for (let i = 1; i <= 7; i++) outbox.put(makeEvent(i), `${fake.url}/v1/feedback`);
  assert.equal(await outbox.close(), true);
  assert.deepEqual(drops.map((drop) => drop.waiting.event.event_id), ["e3"]);
  assert.equal(fake.events.length, 6);
});

test("the oldest makes room and is counted", async (t) => {
  const fake = await makeFake(t);
  const drops: Drop[] = [];
  fake.isDown = true;
  const outbox = makeOutbox({ maxEvents: 3, onDrop: (drop) => drops.push(drop) });
  for (let i = 1; i <= 5; i++) outbox.put(makeEvent(i), `${fake.url}/v1/feedback`);
  assert.deepEqual(drops.map((drop) => drop.waiting.event.event_id), ["e1", "e2"]);
  fake.isDown = false;
  await waitFor(() => outbox.numPending === 0);
  const { put, overflowed, accepted } = outbox.counts;
  assert.deepEqual([put, overflowed, accepted], [5, 2, 3]);
});

test("events outlive a restart with their ids and sequence", async (t) => {
  for (const [name, open] of Object.entries(lasting(t))) {
    const fake = await makeFake(t);
    fake.isDown = true;
    const before = makeOutbox({ store: open() });
    assert.equal(before.nextSeq("s/1"), 1, name);
    before.put(makeEvent(2), `${fake.url}/v1/feedback`);
    before.put(makeEvent(1), `${fake.url}/v1/feedback`);
    assert.equal(await before.close(), false);
    fake.isDown = false;
    const after = makeOutbox({ store: open() });
    assert.equal(after.numPending, 2);
    assert.equal(after.nextSeq("s/1"), 2);
    assert.equal(after.nextSeq("s/2"), 1);
    await waitFor(() => after.numPending === 0);
    assert.deepEqual(fake.events.map((event) => event["event_id"]), ["e1", "e2"]);
    assert.equal(open().size, 0);
  }
});

test("a repeat of what the server took counts as a duplicate", async (t) => {
  const fake = await makeFake(t);
  fake.events.push({ ...makeEvent(1) });
  const outbox = makeOutbox();
  outbox.put(makeEvent(1), `${fake.url}/v1/feedback`);
  assert.equal(await outbox.close(), true);
  assert.deepEqual([outbox.counts.duplicate, fake.events.length], [1, 1]);
});

test("a batch goes to one endpoint only", async (t) => {
  const [one, other] = [await makeFake(t), await makeFake(t)];
  const outbox = makeOutbox();
  for (const [i, fake] of [one, one, other, one].entries()) {
    outbox.put(makeEvent(i), `${fake.url}/v1/feedback`);
  }
  assert.equal(await outbox.close(), true);
  assert.deepEqual([one.batchSizes, other.batchSizes], [[2, 1], [1]]);
});

test("as the page goes the browser gets what is pending, in beacons that it can take", (t) => {
  const beacons: string[] = [];
  const sendBeacon = (url: string, body: string): boolean => {
    assert.equal(url, "http://h/v1/feedback");
    return beacons.push(body) > 0;
  };
  const page = Object.assign(new EventTarget(), { visibilityState: "visible" });
  setGlobal(t, "document", page);
  setGlobal(t, "navigator", { sendBeacon });
  const outbox = makeOutbox({ store: new MemoryStore(), fetch: () => new Promise(() => {}) });
  for (let i = 1; i <= 3; i++) {
    outbox.put(makeEvent(i, { reason: "x".repeat(25_000) }), "http://h/v1/feedback");
  }
  page.dispatchEvent(new Event("visibilitychange"));
  assert.deepEqual(beacons, []);
  page.visibilityState = "hidden";
  page.dispatchEvent(new Event("visibilitychange"));
  const sizes = beacons.map((body) => (JSON.parse(body) as { events: unknown[] }).events.length);
  assert.deepEqual(sizes, [2, 1]);
  assert.equal(outbox.numPending, 3); // nobody has confirmed them
});

function setGlobal(t: TestContext, name: string, value: unknown): void {
  const before = Object.getOwnPropertyDescriptor(globalThis, name);
  Object.defineProperty(globalThis, name, { configurable: true, value });
  t.after(() => {
    if (before) Object.defineProperty(globalThis, name, before);
    else Reflect.deleteProperty(globalThis, name);
  });
}

test("events travel as text, which needs no preflight", async (t) => {
  const fake = await makeFake(t);
  const outbox = makeOutbox();
  outbox.put(makeEvent(1), `${fake.url}/v1/feedback`);
  await outbox.close();
  assert.deepEqual(fake.contentTypes, ["text/plain;charset=UTF-8"]);
});

test("Retry-After is read in both forms, and waited for", async (t) => {
  assert.equal(retryAfterMs("17", 0), 17_000);
  assert.equal(retryAfterMs("Thu, 01 Jan 1970 00:01:30 GMT", 60_000), 30_000);
  assert.equal(retryAfterMs("soon", 0), 0);
  assert.equal(retryAfterMs(null, 0), 0);
  const fake = await makeFake(t);
  fake.script = [{ status: 503, headers: { "retry-after": "1" } }];
  const start = performance.now();
  const outbox = makeOutbox();
  outbox.put(makeEvent(1), `${fake.url}/v1/feedback`);
  await waitFor(() => outbox.numPending === 0);
  assert.ok(performance.now() - start >= 990);
});
