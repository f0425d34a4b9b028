// Measures accepted texts when their time has come, 30 s and 5 min after acceptance.

import { measureRetention } from "./retention.js";
import type { Suggestion } from "./suggestion.js";

export const HORIZONS_S = [30, 300] as const;

/** Calls back after a while; `setTimeout` by default. Returns what cancels it. */
export type Schedule = (afterMs: number, callback: () => void) => () => void;

export class RetentionMeter {
  readonly #schedule: Schedule;
  readonly #nowMs: () => number;
  readonly #cancels = new Map<Suggestion, (() => void)[]>();

  constructor(schedule: Schedule = byTimeout, nowMs: () => number = () => Date.now()) {
    this.#schedule = schedule;
    this.#nowMs = nowMs;
  }

  /**
   * `readPlace` returns what stands now where `accepted` was put (see `findPlace`), or `undefined`
   * once the document cannot be seen any more, which is no loss of the text.
   */
  watch(suggestion: Suggestion, accepted: string, readPlace: () => string | undefined): void {
    const startMs = this.#nowMs();
    const look = (horizonS: number): void => {
      const lateS = (this.#nowMs() - startMs) / 1000 - horizonS;
      if (lateS > horizonS) return void suggestion.notObservable(horizonS, "too_late"); // asleep
      const place = readPlace();
      if (place === undefined) suggestion.notObservable(horizonS, "document_closed");
      else suggestion.retained(horizonS, measureRetention(accepted, place));
    };
    const cancels = HORIZONS_S.map((s) => this.#schedule(s * 1000, () => look(s)));
    this.#cancels.set(suggestion, [...(this.#cancels.get(suggestion) ?? []), ...cancels]);
  }

  /** Drop what is not yet due, as when a later acceptance replaces this one. */
  forget(suggestion: Suggestion): void {
    for (const cancel of this.#cancels.get(suggestion) ?? []) cancel();
    this.#cancels.delete(suggestion);
  }

  close(): void {
    for (const suggestion of this.#cancels.keys()) this.forget(suggestion);
  }
}

function byTimeout(afterMs: number, callback: () => void): () => void {
  const timer = setTimeout(callback, afterMs);
  if (typeof timer === "object") timer.unref(); // keeps no Node process alive
  return () => clearTimeout(timer);
}
