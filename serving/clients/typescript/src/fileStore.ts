// Events in a folder, one file each: they outlive the process. For Node, not for browsers.

import { mkdirSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import { type EventStore, type Waiting, inOrder } from "./stores.js";

export class FileStore implements EventStore {
  readonly #folder: string;

  /** The folder is made if it is missing. */
  constructor(folder: string) {
    this.#folder = folder;
    mkdirSync(folder, { recursive: true, mode: 0o700 });
  }

  get size(): number {
    return this.#names().length;
  }

  list(): Waiting[] {
    const texts = this.#names().map((name) => this.#read(name)).filter((text) => text !== undefined);
    return inOrder(texts.map((text) => JSON.parse(text) as Waiting));
  }

  add(waiting: Waiting): void {
    this.#write(`${waiting.event.event_id}.event`, JSON.stringify(waiting));
  }

  remove(eventIds: readonly string[]): void {
    for (const id of eventIds) rmSync(join(this.#folder, `${id}.event`), { force: true });
  }

  nextSeq(sessionId: string): number {
    const name = `${encodeURIComponent(sessionId)}.seq`;
    const seq = Number(this.#read(name) ?? 0) + 1;
    this.#write(name, String(seq));
    return seq;
  }

  #names(): string[] {
    return readdirSync(this.#folder).filter((name) => name.endsWith(".event"));
  }

  /** A file appears whole or not at all. */
  #write(name: string, text: string): void {
    const aside = join(this.#folder, `${name}.${process.pid}.tmp`);
    writeFileSync(aside, text, { mode: 0o600 });
    renameSync(aside, join(this.#folder, name));
  }

  /** `undefined` if it is not there, as when another process has just removed it. */
  #read(name: string): string | undefined {
    try {
      return readFileSync(join(this.#folder, name), "utf8");
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
      throw error;
    }
  }
}
