// Delivery of one batch: what the server's answer means for each of its events.

import type { Waiting } from "./stores.js";

const RETRY_STATUSES = new Set([408, 409, 425, 429]);
const RETRY_ERROR_TYPES = new Set(["service_unavailable_error", "rate_limit_error", "api_error"]);

export type Fetch = typeof globalThis.fetch;

/** An event that will not be sent again, as the server said or for want of room. */
export interface Drop {
  readonly waiting: Waiting;
  readonly reason: string;
}

/** What became of a batch. Events in none of the lists are to be sent again. */
export type Outcome =
  | { kind: "answered"; accepted: string[]; duplicate: string[]; refused: Drop[] }
  | { kind: "try later"; reason: string; afterMs: number }
  /** As a whole: smaller batches may show which event is to blame. */
  | { kind: "batch refused"; reason: string };

/** Send a batch of one endpoint once. */
export async function post(fetch: Fetch, batch: readonly Waiting[], timeoutMs: number): Promise<Outcome> {
  const endpoint = batch[0]?.endpoint ?? "";
  let answer: Response;
  let text: string;
  try {
    answer = await fetch(endpoint, {
      method: "POST",
      headers: { "content-type": "text/plain;charset=UTF-8" }, // needs no preflight
      body: bodyOf(batch),
      signal: AbortSignal.timeout(timeoutMs),
    });
    text = await answer.text();
  } catch (error) {
    return { kind: "try later", reason: `${endpoint}: ${String(error)}`, afterMs: 0 };
  }
  if (RETRY_STATUSES.has(answer.status) || answer.status >= 500) {
    const afterMs = retryAfterMs(answer.headers.get("retry-after"), Date.now());
    return { kind: "try later", reason: `${endpoint}: status ${answer.status}`, afterMs };
  }
  if (!answer.ok) {
    return { kind: "batch refused", reason: `status ${answer.status}: ${text.slice(0, 500)}` };
  }
  return readResults(text, batch);
}

export function bodyOf(batch: readonly Waiting[]): string {
  return JSON.stringify({ events: batch.map((waiting) => waiting.event) });
}

interface Result {
  event_id: string;
  status: string;
  error?: { type?: string };
}

function readResults(text: string, batch: readonly Waiting[]): Outcome {
  let results: Map<string, Result>;
  try {
    const answer = JSON.parse(text) as { results: Result[] };
    results = new Map(answer.results.map((result) => [result.event_id, result]));
  } catch {
    const reason = `expected the feedback API's results, got ${text.slice(0, 200)}`;
    return { kind: "try later", reason, afterMs: 0 };
  }
  const accepted: string[] = [];
  const duplicate: string[] = [];
  const refused: Drop[] = [];
  for (const waiting of batch) {
    const id = waiting.event.event_id;
    const result = results.get(id);
    if (result?.status === "accepted") accepted.push(id);
    else if (result?.status === "duplicate") duplicate.push(id);
    else if (result?.status === "refused" && !RETRY_ERROR_TYPES.has(result.error?.type ?? ""))
      refused.push({ waiting, reason: JSON.stringify(result.error) });
  }
  return { kind: "answered", accepted, duplicate, refused };
}

/** What a Retry-After header asks for (RFC 9110, 10.2.3), in ms; 0 if it says nothing. */
export function retryAfterMs(header: string | null, nowMs: number): number {
  if (header === null) return 0;
  if (/^\s*\d+\s*$/.test(header)) return Number(header) * 1000;
  const at = Date.parse(header);
  return Number.isNaN(at) ? 0 : Math.max(0, at - nowMs);
}
