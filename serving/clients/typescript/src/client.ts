// The official OpenAI client pointed at Tendril, and a `Suggestion` for each of its replies.

import OpenAI from "openai";

import type { Fetch } from "./delivery.js";
import { Outbox } from "./outbox.js";
import { RecentReplies, type Reply } from "./replies.js";
import { Suggestion } from "./suggestion.js";

export interface TendrilOptions {
  /** With `/v1`, as for OpenAI. */
  baseURL: string;
  apiKey: string;
  user?: string;
  sessionId?: string;
  trainConsent?: boolean;
  contentConsent?: boolean;
  outbox?: Outbox;
  /** A client whose timeouts, retries and headers to keep. It is copied. */
  openai?: OpenAI;
  /** Of the OpenAI client; the global one by default. */
  fetch?: Fetch;
}

/** `openai` is the official client, used as ever; `suggestion(reply)` reports on a reply. */
export class Tendril {
  readonly openai: OpenAI;
  readonly outbox: Outbox;
  readonly sessionId: string;
  readonly #baseURL: string;
  readonly #replies = new RecentReplies();

  constructor(options: TendrilOptions) {
    const { baseURL, apiKey } = options;
    this.sessionId = options.sessionId ?? crypto.randomUUID();
    this.outbox = options.outbox ?? new Outbox();
    this.#baseURL = baseURL;
    const plain: Fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init));
    // Headers are added here, as `withOptions` would replace those of the client's own.
    const fetch = this.#replies.wrap(plain, headersOf(this.sessionId, options));
    this.openai =
      options.openai?.withOptions({ baseURL, apiKey, fetch }) ??
      new OpenAI({ baseURL, apiKey, fetch });
  }

  /** For a completion, a stream or a `Response` of `openai`. Throws `NoTrace`. */
  suggestion(reply: Reply, choice = 0): Suggestion {
    const { traceId, policyVersion, feedbackUrl } = this.#replies.headersOf(reply);
    return new Suggestion({
      traceId: choice === 0 ? traceId : `${traceId}.${choice}`,
      policyVersion,
      sessionId: this.sessionId,
      outbox: this.outbox,
      ...feedbackTarget(this.#baseURL, feedbackUrl),
    });
  }

  /** Send what is pending; false if something could not be sent and stays in the store. */
  close(): Promise<boolean> {
    return this.outbox.close();
  }
}

/**
 * Endpoint and token of a reply's feedback URL, which may be relative to the server's root. Events
 * carry their tokens themselves, so that one request can hold those of several traces.
 */
export function feedbackTarget(
  baseURL: string,
  feedbackUrl: string,
): { endpoint: string; feedbackToken: string | undefined } {
  const root = baseURL.replace(/\/+$/, "").replace(/\/v1$/, "");
  const url = new URL(feedbackUrl.startsWith("/") ? root + feedbackUrl : feedbackUrl);
  const feedbackToken = url.searchParams.get("token") ?? undefined;
  return { endpoint: url.origin + url.pathname, feedbackToken };
}

function headersOf(sessionId: string, options: TendrilOptions): Record<string, string> {
  return {
    "x-tendril-session-id": sessionId,
    "x-tendril-train-consent": String(options.trainConsent ?? true),
    "x-tendril-content-consent": String(options.contentConsent ?? false),
    ...(options.user === undefined ? {} : { "x-tendril-user": options.user }),
  };
}
