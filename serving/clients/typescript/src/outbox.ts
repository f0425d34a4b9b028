// The outbox: takes events at once, delivers them in the background, at least once.
//
// With a store that lasts, events outlive the page or process; the server knows repeats by their id.

import { type Drop, type Fetch, bodyOf, post } from "./delivery.js";
import type { TendrilEvent } from "./events.js";
import { type EventStore, MemoryStore, type Waiting } from "./stores.js";

const MAX_RETRY_AFTER_MS = 3_600_000;
const MAX_BEACON_BYTES = 60_000; // browsers take 64 KiB in all

export interface OutboxOptions {
  store?: EventStore;
  /** The oldest make room for new ones, and count as overflowed. */
  maxEvents?: number;
  batchSize?: number;
  backoffMs?: number;
  maxBackoffMs?: number;
  timeoutMs?: number;
  /** Called for each event given up. */
  onDrop?: (drop: Drop) => void;
  fetch?: Fetch;
}

/** What became of events since the outbox was opened. */
export interface Counts {
  put: number;
  accepted: number;
  duplicate: number;
  refused: number;
  overflowed: number;
}

export class Outbox {
  readonly counts: Counts = { put: 0, accepted: 0, duplicate: 0, refused: 0, overflowed: 0 };
  readonly #options: Required<OutboxOptions>;
  #limit: number;
  #failures = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #sending: Promise<void> | undefined;
  #closed = false;

  /** Starts to send what the store holds. */
  constructor(options: OutboxOptions = {}) {
    this.#options = {
      store: options.store ?? new MemoryStore(),
      maxEvents: options.maxEvents ?? 10_000,
      batchSize: options.batchSize ?? 100,
      backoffMs: options.backoffMs ?? 500,
      maxBackoffMs: options.maxBackoffMs ?? 60_000,
      timeoutMs: options.timeoutMs ?? 10_000,
      onDrop: options.onDrop ?? (() => {}),
      fetch: options.fetch ?? ((input, init) => globalThis.fetch(input, init)),
    };
    this.#limit = this.#options.batchSize;
    if (this.numPending > 0) this.#schedule(0);
    if (typeof document !== "undefined") {
      document.addEventListener("visibilitychange", this.#onVisibility);
    }
  }

  get numPending(): number {
    return this.#options.store.size;
  }

  nextSeq(sessionId: string): number {
    return this.#options.store.nextSeq(sessionId);
  }

  /** Keep the event for delivery to `endpoint` (absolute URL). */
  put(event: TendrilEvent, endpoint: string): void {
    const { store, maxEvents } = this.#options;
    store.add({ event, endpoint });
    this.counts.put += 1;
    const excess = store.size - maxEvents;
    const overflow = excess > 0 ? store.list().slice(0, excess) : [];
    this.counts.overflowed += overflow.length;
    this.#drop(overflow.map((old) => ({ waiting: old, reason: "outbox full" })));
    if (this.#timer === undefined && this.#sending === undefined) this.#schedule(0);
  }

  /** Try now, whatever the back-off, until nothing is pending or a try fails. True: all is gone. */
  async flush(): Promise<boolean> {
    await this.#sending;
    await this.#send();
    return this.numPending === 0;
  }

  /** One more try; what is left stays in the store. */
  async close(): Promise<boolean> {
    const isEmpty = await this.flush();
    this.#closed = true;
    clearTimeout(this.#timer);
    if (typeof document !== "undefined") {
      document.removeEventListener("visibilitychange", this.#onVisibility);
    }
    return isEmpty;
  }

  /**
   * Hand what is pending to the browser, which sends it even as the page goes. No answer comes back,
   * so events stay in the store; if the page lives on they are sent again and count as duplicates.
   */
  beacon(): void {
    for (let waiting = this.#options.store.list(); waiting.length > 0; ) {
      const batch = sameEndpoint(waiting, this.#options.batchSize);
      while (batch.length > 1 && byteLength(bodyOf(batch)) > MAX_BEACON_BYTES) {
        batch.splice(Math.ceil(batch.length / 2));
      }
      if (!navigator.sendBeacon(batch[0]?.endpoint ?? "", bodyOf(batch))) return;
      waiting = waiting.slice(batch.length);
    }
  }

  readonly #onVisibility = (): void => {
    if (document.visibilityState === "hidden") this.beacon(); // the last event that phones fire
  };

  #schedule(afterMs: number): void {
    if (this.#closed) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#send().catch((error: unknown) => {
        console.error("tendril: events were not delivered; trying again", error); // a full disk
        this.#tryLater(0);
      });
    }, afterMs);
    // A waiting retry does not keep a Node process alive; browsers have numbers for timers.
    if (afterMs > 0 && typeof this.#timer === "object") this.#timer.unref();
  }

  #send(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#sending ??= this.#deliverAll().finally(() => {
      this.#sending = undefined;
      // An event put between the last look and now found a sender that was already leaving.
      if (this.#timer === undefined && this.numPending > 0) this.#schedule(0);
    });
    return this.#sending;
  }

  async #deliverAll(): Promise<void> {
    const { store, batchSize, fetch, timeoutMs } = this.#options;
    for (;;) {
      const batch = sameEndpoint(store.list(), this.#limit);
      if (batch.length === 0) return;
      const outcome = await post(fetch, batch, timeoutMs);
      if (outcome.kind === "try later") return this.#tryLater(outcome.afterMs);
      if (outcome.kind === "batch refused") {
        if (batch.length > 1) {
          this.#limit = Math.floor(batch.length / 2);
          continue;
        }
        this.counts.refused += 1;
        this.#drop(batch.map((waiting) => ({ waiting, reason: outcome.reason })));
        continue;
      }
      this.#limit = Math.min(2 * this.#limit, batchSize);
      if (this.#settle(outcome) < batch.length) return this.#tryLater(0);
      this.#failures = 0;
    }
  }

  /** Returns how many events need not be sent again. */
  #settle(outcome: { accepted: string[]; duplicate: string[]; refused: Drop[] }): number {
    const { accepted, duplicate, refused } = outcome;
    this.counts.accepted += accepted.length;
    this.counts.duplicate += duplicate.length;
    this.counts.refused += refused.length;
    this.#options.store.remove([...accepted, ...duplicate]);
    this.#drop(refused);
    return accepted.length + duplicate.length + refused.length;
  }

  /** Random exponential back-off, or longer if the server asks for it. */
  #tryLater(askedMs: number): void {
    const { backoffMs, maxBackoffMs } = this.#options;
    const capMs = Math.min(maxBackoffMs, backoffMs * 2 ** Math.min(this.#failures, 30));
    this.#failures += 1;
    this.#schedule(Math.max(1, Math.random() * capMs, Math.min(askedMs, MAX_RETRY_AFTER_MS)));
  }

  #drop(drops: readonly Drop[]): void {
    this.#options.store.remove(drops.map((drop) => drop.waiting.event.event_id));
    for (const drop of drops) this.#options.onDrop(drop);
  }
}

/** The oldest events, up to `limit`, as long as they go to one place. */
function sameEndpoint(waiting: readonly Waiting[], limit: number): Waiting[] {
  const other = waiting.findIndex((one) => one.endpoint !== waiting[0]?.endpoint);
  return waiting.slice(0, Math.min(limit, other === -1 ? waiting.length : other));
}

function byteLength(text: string): number {
  return new TextEncoder().encode(text).length;
}
