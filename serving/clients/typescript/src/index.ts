// Tendril's client: the official OpenAI client, and what users did with each reply.

export { Tendril, feedbackTarget, type TendrilOptions } from "./client.js";
export type { Drop } from "./delivery.js";
export type { EventType, Granularity, Span, TendrilEvent } from "./events.js";
export { type Counts, Outbox, type OutboxOptions } from "./outbox.js";
export { NoTrace, type Reply } from "./replies.js";
export { type Retention, findPlace, measureRetention, shareOf } from "./retention.js";
export { RetentionMeter, type Schedule } from "./retentionMeter.js";
export { type EventStore, MemoryStore, type Waiting, WebStorageStore } from "./stores.js";
export {
  IllegalLifecycle,
  type Part,
  type State,
  Suggestion,
  type SuggestionOptions,
  byteSpan,
} from "./suggestion.js";
