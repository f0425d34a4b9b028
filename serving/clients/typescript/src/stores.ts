// Where events wait: one entry an event, so that several tabs or processes may share a store.

import type { TendrilEvent } from "./events.js";

/** An event, and the absolute URL that it goes to. */
export interface Waiting {
  readonly event: TendrilEvent;
  readonly endpoint: string;
}

export interface EventStore {
  readonly size: number;
  /** All of them, oldest first. */
  list(): Waiting[];
  add(waiting: Waiting): void;
  remove(eventIds: readonly string[]): void;
  /** 1, 2, ... for each session, going on for as long as the store lives. */
  nextSeq(sessionId: string): number;
}

/** Lost with the page or process. */
export class MemoryStore implements EventStore {
  readonly #waiting = new Map<string, Waiting>();
  readonly #lastSeq = new Map<string, number>();

  get size(): number {
    return this.#waiting.size;
  }

  list(): Waiting[] {
    return [...this.#waiting.values()];
  }

  add(waiting: Waiting): void {
    this.#waiting.set(waiting.event.event_id, waiting);
  }

  remove(eventIds: readonly string[]): void {
    for (const id of eventIds) this.#waiting.delete(id);
  }

  nextSeq(sessionId: string): number {
    const seq = (this.#lastSeq.get(sessionId) ?? 0) + 1;
    this.#lastSeq.set(sessionId, seq);
    return seq;
  }
}

/** `localStorage` or its like: outlives the page. Throws where the browser's quota is used up. */
export class WebStorageStore implements EventStore {
  readonly #storage: Storage;
  readonly #prefix: string;

  constructor(storage: Storage = localStorage, prefix = "tendril.") {
    this.#storage = storage;
    this.#prefix = prefix;
  }

  get size(): number {
    return this.#keys().length;
  }

  list(): Waiting[] {
    const texts = this.#keys().map((key) => this.#storage.getItem(key));
    return inOrder(texts.filter((text) => text !== null).map((text) => JSON.parse(text) as Waiting));
  }

  add(waiting: Waiting): void {
    this.#storage.setItem(this.#key(waiting.event.event_id), JSON.stringify(waiting));
  }

  remove(eventIds: readonly string[]): void {
    for (const id of eventIds) this.#storage.removeItem(this.#key(id));
  }

  nextSeq(sessionId: string): number {
    const key = `${this.#prefix}seq.${sessionId}`;
    const seq = Number(this.#storage.getItem(key) ?? 0) + 1;
    this.#storage.setItem(key, String(seq));
    return seq;
  }

  #keys(): string[] {
    const all = Array.from({ length: this.#storage.length }, (_, i) => this.#storage.key(i));
    return all.filter((key) => key !== null && key.startsWith(this.#key(""))) as string[];
  }

  #key(eventId: string): string {
    return `${this.#prefix}event.${eventId}`;
  }
}

/** Oldest first: by time, and within a moment by sequence. */
export function inOrder(waiting: Waiting[]): Waiting[] {
  return waiting.sort(
    (a, b) =>
      a.event.client_time - b.event.client_time || a.event.client_seq - b.event.client_seq,
  );
}
