// A stand-in for Tendril over real HTTP: completions with trace headers, and a feedback API.

import { type IncomingMessage, type ServerResponse, createServer } from "node:http";
import type { AddressInfo } from "node:net";

type Json = Record<string, unknown>;

export class FakeTendril {
  readonly events: Json[] = [];
  /** Of every feedback request, the failed ones too. */
  readonly batchSizes: number[] = [];
  /** Of completions. */
  readonly requestHeaders: IncomingMessage["headers"][] = [];
  readonly contentTypes: (string | undefined)[] = [];
  /** Answers the first feedback requests, one each. */
  script: { status: number; body?: string; headers?: Record<string, string> }[] = [];
  /** Error types by event type, for those that are to be refused. */
  refusals: Record<string, string> = {};
  isDown = false;
  url = "";
  #numReplies = 0;
  readonly #server = createServer((request, response) => void this.#serve(request, response));

  static async start(): Promise<FakeTendril> {
    const fake = new FakeTendril();
    await new Promise<void>((listening) => fake.#server.listen(0, "127.0.0.1", listening));
    fake.url = `http://127.0.0.1:${(fake.#server.address() as AddressInfo).port}`;
    return fake;
  }

  get types(): unknown[] {
    return this.events.map((event) => event["type"]);
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((closed) => this.#server.close(closed));
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const body = JSON.parse(Buffer.concat(chunks).toString()) as Json;
    if (request.url?.startsWith("/v1/feedback")) {
      this.contentTypes.push(request.headers["content-type"]);
      this.#feedback(body["events"] as Json[], response);
    } else {
      this.requestHeaders.push(request.headers);
      this.#complete(body, response);
    }
  }

  #feedback(batch: Json[], response: ServerResponse): void {
    this.batchSizes.push(batch.length);
    const scripted = this.isDown ? { status: 503 } : this.script.shift();
    if (scripted !== undefined) {
      const { status, headers = {}, body = "{}" } = scripted as (typeof this.script)[number];
      response.writeHead(status, headers).end(body);
      return;
    }
    const results = batch.map((event) => this.#verdict(event));
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify({ results }));
  }

  #verdict(event: Json): Json {
    const event_id = event["event_id"];
    const type = this.refusals[event["type"] as string];
    if (type !== undefined) return { event_id, status: "refused", error: { type, code: "why" } };
    if (this.events.some((known) => known["event_id"] === event_id)) {
      return { event_id, status: "duplicate" };
    }
    this.events.push(event);
    return { event_id, status: "accepted" };
  }

  #complete(body: Json, response: ServerResponse): void {
    this.#numReplies += 1;
    const traceId = `trace-${this.#numReplies}`;
    response.setHeader("x-tendril-trace-id", traceId);
    response.setHeader("x-tendril-policy-version", "7");
    response.setHeader("x-tendril-feedback-url", `/v1/feedback?token=t-${traceId}`);
    const choices = [{ index: 0, text: " value", finish_reason: "stop", logprobs: null }];
    const common = { id: `cmpl-${traceId}`, object: "text_completion", created: 0 };
    const reply = JSON.stringify({ ...common, model: body["model"], choices });
    if (body["stream"] === true) {
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.end(`data: ${reply}\n\ndata: [DONE]\n\n`);
    } else {
      response.writeHead(200, { "content-type": "application/json" }).end(reply);
    }
  }
}

export async function waitFor(condition: () => boolean): Promise<void> {
  for (let i = 0; i < 1000; i++) {
    if (condition()) return;
    await new Promise((wake) => setTimeout(wake, 10));
  }
  throw new Error("waited in vain");
}
