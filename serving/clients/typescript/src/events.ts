// One event about a trace, as the feedback API reads it (serving/feedback/wire.py).

export type EventType =
  | "suggestion.shown"
  | "suggestion.suppressed"
  | "suggestion.accepted"
  | "suggestion.accepted_partially"
  | "suggestion.rejected"
  | "suggestion.ignored"
  | "hunk.accepted"
  | "hunk.rejected"
  | "tool.denied"
  | "response.stopped"
  | "edit.applied"
  | "edit.undone"
  | "edit.redone"
  | "edit.reverted"
  | "retention.measured"
  | "commit.observed"
  | "content.copied"
  | "content.inserted"
  | "user.followed_up"
  | "response.regenerated"
  | "feedback.vote"
  | "feedback.rating"
  | "session.ended";

export type Granularity = "word" | "line" | "hunk" | "other";

/** [start, end) bytes of the shown text's UTF-8. */
export type Span = readonly [start: number, end: number];

export type Detail = string | number | boolean | Span | undefined;

/** What one user did. Ids are made once, so that a retry is recognised. */
export interface TendrilEvent {
  readonly event_id: string;
  readonly trace_id: string;
  readonly type: EventType;
  /** Per session, plus one an event: the order in which things happened. */
  readonly client_seq: number;
  /** Unix seconds. */
  readonly client_time: number;
  /** Seconds on a clock that does not jump while the page or process lives. */
  readonly client_monotonic_s: number;
  readonly feedback_token?: string;
  /** The fields of its type; see the methods of `Suggestion`. */
  readonly [detail: string]: Detail;
}
