// Which trace a reply of the OpenAI client belongs to.
//
// Reply headers are read by the client's own `fetch` option, so every call keeps its form and its
// types. The client keeps a reply's `x-request-id` on the object it returns; where the server sends
// none it is set to the trace's id. A stream is known by its abort controller, whose signal `fetch`
// was given.

import type { Fetch } from "./delivery.js";

const TRACE = "x-tendril-trace-id";
const REQUEST_ID = "x-request-id";
const MAX_REPLIES = 1024;

/** What the server says about a reply. */
export interface ReplyHeaders {
  readonly traceId: string;
  readonly policyVersion: number;
  readonly feedbackUrl: string;
}

/** A completion, a stream, or a `Response` from `withResponse()` or `asResponse()`. */
export type Reply =
  | { readonly id: string; readonly _request_id?: string | null | undefined }
  | { readonly controller: AbortController }
  | Response;

/** The reply names no trace: another server's or client's, or too old to be remembered. */
export class NoTrace extends Error {
  override readonly name = "NoTrace";
}

export class RecentReplies {
  readonly #byRequest = new Map<string, ReplyHeaders>();
  readonly #bySignal = new WeakMap<AbortSignal, ReplyHeaders>();

  /** `fetch` that sends more headers, and takes note of those of the replies. */
  wrap(fetch: Fetch, extra: Readonly<Record<string, string>>): Fetch {
    return async (input, init) => {
      const headers = new Headers(init?.headers);
      for (const [name, value] of Object.entries(extra)) headers.set(name, value);
      const response = await fetch(input, { ...init, headers });
      const found = readHeaders(response.headers);
      if (found === undefined) return response;
      if (init?.signal) this.#bySignal.set(init.signal, found);
      this.#remember(response.headers.get(REQUEST_ID) ?? found.traceId, found);
      return response.headers.has(REQUEST_ID) ? response : named(response, found.traceId);
    };
  }

  /** Throws `NoTrace`. */
  headersOf(reply: Reply): ReplyHeaders {
    let found: ReplyHeaders | undefined;
    if (reply instanceof Response) found = readHeaders(reply.headers);
    else if ("controller" in reply) found = this.#bySignal.get(reply.controller.signal);
    else if (reply._request_id) found = this.#byRequest.get(reply._request_id);
    if (found !== undefined) return found;
    throw new NoTrace(
      `expected a reply with ${TRACE}, got one without it, of another client, or older than the ` +
        `last ${MAX_REPLIES}`,
    );
  }

  #remember(requestId: string, found: ReplyHeaders): void {
    this.#byRequest.set(requestId, found);
    if (this.#byRequest.size > MAX_REPLIES) {
      for (const oldest of this.#byRequest.keys()) {
        this.#byRequest.delete(oldest);
        break;
      }
    }
  }
}

function readHeaders(headers: Headers): ReplyHeaders | undefined {
  const traceId = headers.get(TRACE);
  if (traceId === null) return undefined;
  return {
    traceId,
    policyVersion: Number(headers.get("x-tendril-policy-version")),
    feedbackUrl: headers.get("x-tendril-feedback-url") ?? "/v1/feedback",
  };
}

/** The same response with a request id: headers of one that was fetched cannot be changed. */
function named(response: Response, requestId: string): Response {
  const headers = new Headers(response.headers);
  headers.set(REQUEST_ID, requestId);
  const { status, statusText } = response;
  return new Response(response.body, { status, statusText, headers });
}
