// A reply as its user met it: shown, decided upon, and what came after.
//
// Order is checked where it is made: an event that cannot happen in the suggestion's state throws
// `IllegalLifecycle` and is not sent, so a client's mistake shows in its own tests. Allowed:
//
//     new -> shown -> accepted | acceptedPartially (again, growing) | rejected | ignored
//     accepted* | inserted -> undone or reverted <-> redone
//     edited, retained and committed after a placement; all else at any time

import type { Detail, EventType, Granularity, Span, TendrilEvent } from "./events.js";
import type { Outbox } from "./outbox.js";
import { type Retention, shareOf } from "./retention.js";

export type State = "new" | "shown" | "placed" | "undone" | "declined";

export class IllegalLifecycle extends Error {
  override readonly name = "IllegalLifecycle";
}

/** Characters [start, end) of the shown text, in UTF-16 units, as the bytes of its UTF-8. */
export function byteSpan(text: string, start: number, end: number): Span {
  const bytes = (until: number): number => new TextEncoder().encode(text.slice(0, until)).length;
  return [bytes(start), bytes(end)];
}

/** Of a partial acceptance: bytes (see `byteSpan`) or a share in [0, 1], of the shown text. */
export type Part = { span: Span } | { share: number };

export interface SuggestionOptions {
  traceId: string;
  /** Of the weights that sampled the first token. */
  policyVersion: number;
  sessionId: string;
  /** Absolute URL of the feedback API. */
  endpoint: string;
  feedbackToken: string | undefined;
  outbox: Outbox;
}

/** Reports on one reply. Methods return the event's id and never wait for the network. */
export class Suggestion {
  readonly traceId: string;
  readonly policyVersion: number;
  readonly #options: SuggestionOptions;
  #state: State = "new";

  constructor(options: SuggestionOptions) {
    this.traceId = options.traceId;
    this.policyVersion = options.policyVersion;
    this.#options = options;
  }

  get state(): State {
    return this.#state;
  }

  /** The user sees it, at `position` of `slots`. Report again once `visibleMs` is known. */
  shown(seen: { visibleMs?: number; position?: number; slots?: number } = {}): string {
    this.#require("suggestion.shown", "new", "shown");
    this.#state = "shown";
    const { visibleMs, position, slots } = seen;
    return this.#send("suggestion.shown", { visible_ms: visibleMs, position, slots });
  }

  /** The client kept it from the user. A reason is a code, as everywhere, not prose. */
  suppressed(reason: string): string {
    this.#require("suggestion.suppressed", "new");
    this.#state = "declined";
    return this.#send("suggestion.suppressed", { reason });
  }

  /** All of it went into the user's text; also after partial acceptances, as the last word. */
  accepted(how: { method?: string; visibleMs?: number } = {}): string {
    this.#require("suggestion.accepted", "shown", "placed");
    this.#state = "placed";
    return this.#send("suggestion.accepted", { method: how.method, visible_ms: how.visibleMs });
  }

  /** All that is accepted so far. */
  acceptedPartially(
    part: Part,
    how: { granularity?: Granularity; visibleMs?: number } = {},
  ): string {
    this.#require("suggestion.accepted_partially", "shown", "placed");
    const details = { granularity: how.granularity, visible_ms: how.visibleMs, ...ofPart(part) };
    this.#state = "placed";
    return this.#send("suggestion.accepted_partially", details);
  }

  /** The user said no. */
  rejected(why: { reason?: string; visibleMs?: number } = {}): string {
    return this.#decline("suggestion.rejected", why);
  }

  /** The user typed on, or let it time out. */
  ignored(why: { reason?: string; visibleMs?: number } = {}): string {
    return this.#decline("suggestion.ignored", why);
  }

  /** One of the reply's changes to a file. */
  hunkAccepted(hunkId: string, where: { span?: Span } = {}): string {
    return this.#send("hunk.accepted", { hunk_id: hunkId, span: where.span });
  }

  hunkRejected(hunkId: string, where: { span?: Span } = {}): string {
    return this.#send("hunk.rejected", { hunk_id: hunkId, span: where.span });
  }

  /** What was accepted was taken back by undo. */
  undone(): string {
    this.#require("edit.undone", "placed");
    this.#state = "undone";
    return this.#send("edit.undone");
  }

  /** What was accepted was taken back in another way. */
  reverted(method: "undo" | "git" | "manual"): string {
    this.#require("edit.reverted", "placed");
    this.#state = "undone";
    return this.#send("edit.reverted", { method });
  }

  redone(): string {
    this.#require("edit.redone", "undone");
    this.#state = "placed";
    return this.#send("edit.redone");
  }

  /** The accepted text was changed, at `span` of the shown text. */
  edited(what: { span?: Span; addedChars?: number; removedChars?: number } = {}): string {
    this.#require("edit.applied", "placed", "undone");
    const { span, addedChars, removedChars } = what;
    return this.#send("edit.applied", {
      span,
      added_chars: addedChars,
      removed_chars: removedChars,
    });
  }

  /** Share in [0, 1] of the accepted text that is still there `horizonS` after acceptance. */
  retained(horizonS: number, share: number | Retention): string {
    this.#require("retention.measured", "placed", "undone");
    const details = typeof share === "number" ? { value: share } : ofRetention(share);
    checkShare("retained", details.value);
    return this.#send("retention.measured", { horizon_s: horizonS, ...details });
  }

  /** Retention cannot be measured at that time, for example `document_closed`. */
  notObservable(horizonS: number, reason: string): string {
    this.#require("retention.measured", "placed", "undone");
    return this.#send("retention.measured", { horizon_s: horizonS, reason });
  }

  /** Characters of the accepted text that a commit holds, of all accepted. */
  committed(numChars: number, totalChars: number): string {
    this.#require("commit.observed", "placed", "undone");
    return this.#send("commit.observed", { num_chars: numChars, total_chars: totalChars });
  }

  /** Copied to the clipboard, in whole (share 1) or in part. */
  copied(part: Part): string {
    return this.#send("content.copied", ofPart(part));
  }

  /** Put into a document from elsewhere, such as a chat window. */
  inserted(where: { span?: Span } = {}): string {
    if (this.#state !== "undone") this.#state = "placed";
    return this.#send("content.inserted", { span: where.span });
  }

  /** The user wrote again (`textRef`: the next trace); `sentiment` in [-1, 1] if judged. */
  followedUp(what: { sentiment?: number; textRef?: string } = {}): string {
    return this.#send("user.followed_up", { value: what.sentiment, text_ref: what.textRef });
  }

  regenerated(): string {
    return this.#send("response.regenerated");
  }

  stopped(why: { reason?: string } = {}): string {
    return this.#send("response.stopped", { reason: why.reason });
  }

  toolDenied(toolCallId: string, why: { reason?: string } = {}): string {
    return this.#send("tool.denied", { tool_call_id: toolCallId, reason: why.reason });
  }

  /** 0 withdraws an earlier vote. */
  voted(vote: -1 | 0 | 1, why: { reason?: string } = {}): string {
    return this.#send("feedback.vote", { value: vote, reason: why.reason });
  }

  /** `scale`: the lowest and the highest value there is, as 3 means little without them. */
  rated(value: number, scale: readonly [min: number, max: number]): string {
    const [min, max] = scale;
    if (!(min <= value && value <= max && min < max)) {
      throw new RangeError(`rated: expected a value on the scale ${min} to ${max}, got ${value}`);
    }
    return this.#send("feedback.rating", { value, scale_min: min, scale_max: max });
  }

  sessionEnded(): string {
    return this.#send("session.ended");
  }

  #decline(
    type: "suggestion.rejected" | "suggestion.ignored",
    why: { reason?: string; visibleMs?: number },
  ): string {
    this.#require(type, "shown");
    this.#state = "declined";
    return this.#send(type, { reason: why.reason, visible_ms: why.visibleMs });
  }

  #require(type: EventType, ...states: State[]): void {
    if (states.includes(this.#state)) return;
    throw new IllegalLifecycle(
      `trace ${this.traceId}: ${type}: expected a suggestion that is ${states.join(" or ")}, ` +
        `got one that is ${this.#state}`,
    );
  }

  #send(type: EventType, details: Record<string, Detail> = {}): string {
    const { traceId, sessionId, endpoint, feedbackToken, outbox } = this.#options;
    const event: TendrilEvent = {
      event_id: crypto.randomUUID(),
      trace_id: traceId,
      type,
      client_seq: outbox.nextSeq(sessionId),
      client_time: Date.now() / 1000,
      client_monotonic_s: (performance.timeOrigin + performance.now()) / 1000,
      ...(feedbackToken === undefined ? {} : { feedback_token: feedbackToken }),
      ...details, // JSON leaves out what is undefined
    };
    outbox.put(event, endpoint);
    return event.event_id;
  }
}

function ofPart(part: Part): { span: Span } | { value: number } {
  if ("span" in part) return { span: part.span };
  checkShare("part", part.share);
  return { value: part.share };
}

function ofRetention(measured: Retention): { value: number } & Record<string, Detail> {
  return {
    value: shareOf(measured),
    four_gram: measured.fourGram,
    no_revert: measured.noRevert,
    arc_chars: measured.arcChars,
    total_chars: measured.totalChars,
  };
}

function checkShare(name: string, share: number): void {
  if (!(share >= 0 && share <= 1)) {
    throw new RangeError(`${name}: expected a share in [0, 1], got ${share}`);
  }
}
