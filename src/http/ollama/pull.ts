// Ollama's POST /api/pull: downloads a model from the hub into the cache, with progress.
import type { Context } from "hono";
import { OllamaPullRequest, type OllamaPullStatus } from "../../api/ollama/models.ts";
import { HubError } from "../../hub/hub-error.ts";
import { fullName } from "../../hub/popular-models.ts";
import { type PullEvent, pullModel } from "../../hub/pull.ts";
import { parseRepoName } from "../../hub/repo-name.ts";
import { type Environment, hubCache } from "../../hub/settings.ts";
import { printable } from "../../printable.ts";
import type { HttpEnv } from "../frame/env.ts";
import { ApiError, apiErrorOf, badRequest, ClientGoneError } from "../frame/errors.ts";
import { type EventSource, streamResponse } from "../frame/event-stream.ts";
import { readRequest } from "../frame/json-body.ts";
import type { BodyReader } from "../frame/serving.ts";
import { ollamaDialect, ollamaError } from "./dialect.ts";

/** Minimum interval between progress lines. */
const PROGRESS_MS = 100;

export function ollamaPull(serving: BodyReader & { env: Environment; heartbeatMs: number }) {
  const { env, heartbeatMs } = serving;
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const { model: name, stream } = await readRequest(c, serving, OllamaPullRequest);
    // Removes the prefixes that Ollama's clients put before the name of a Hugging Face repo.
    const short = name.replace(/^(https:\/\/)?(hf\.co|huggingface\.co)\//, "");
    const repo = parseRepoName(fullName(short, env));
    if (!repo?.id.includes("/")) {
      throw badRequest("model", "Invalid 'model': expected a repo of Hugging Face: org/name.");
    }
    const { id, ...wanted } = repo;
    const leaving = new AbortController();
    const signal = AbortSignal.any([c.req.raw.signal, leaving.signal]);
    const pull = async (onEvent: (event: PullEvent) => void) => {
      try {
        await pullModel(id, { ...wanted, env, signal, onEvent });
      } catch (error) {
        if (signal.aborted) throw new ClientGoneError();
        throw error instanceof HubError ? unpulled(error, hubCache(env)) : error;
      }
    };
    if (!stream) {
      await pull(() => {});
      return c.json({ status: "success" } satisfies OllamaPullStatus);
    }
    const over = Promise.withResolvers<void>();
    const source = pullSource(new PullLines(pull), (error) => {
      leaving.abort();
      if (error instanceof Error) c.get("record").error = error.message;
      over.resolve();
    });
    const response = await streamResponse(source, {
      mediaType: ollamaDialect.streamType,
      heartbeatMs,
    });
    c.get("record").over = over.promise;
    return response;
  };
}

function pullSource(lines: PullLines, onClose: (error: unknown) => void): EventSource {
  const { eventText } = ollamaDialect;
  let failure: unknown;
  return {
    async next() {
      const line = await lines.next();
      return line && eventText(line);
    },
    heartbeat: () => eventText(lines.last),
    failure(error) {
      failure = error;
      if (error instanceof ClientGoneError) return undefined;
      return eventText(ollamaError(apiErrorOf(error)));
    },
    close: () => onClose(failure),
  };
}

/** Creates the error of a failed pull without the cache's path, which is not revealed even to the owner. */
function unpulled({ message }: HubError, cache: string): ApiError {
  return new ApiError(502, printable(message.replaceAll(cache, "the cache")));
}

/** Queues the status lines of a pull; a line with byte counts replaces an unsent line with older counts. */
class PullLines {
  last: OllamaPullStatus = { status: "pulling manifest" };
  #waiting: OllamaPullStatus[] = [];
  #over: { error?: unknown } | undefined;
  #wake = Promise.withResolvers<void>();
  readonly #ended = Promise.withResolvers<void>();
  #digest = "";
  #toldMs = Number.NEGATIVE_INFINITY;

  constructor(pull: (onEvent: (event: PullEvent) => void) => Promise<void>) {
    pull((event) => this.#take(event)).then(
      () => {
        this.#waiting.push({ status: "success" });
        this.#end({});
      },
      (error: unknown) => this.#end({ error }),
    );
  }

  /** Returns the next line; undefined at the end. */
  async next(): Promise<OllamaPullStatus | undefined> {
    while (this.#waiting.length === 0 && !this.#over) {
      await this.#wake.promise;
      this.#wake = Promise.withResolvers();
    }
    // Limits how often byte counts are sent.
    if (this.#waiting[0]?.digest !== undefined) {
      const leftMs = this.#toldMs + PROGRESS_MS - performance.now();
      await Promise.race([Bun.sleep(Math.max(0, leftMs)), this.#ended.promise]);
      this.#toldMs = performance.now();
    }
    const line = this.#waiting.shift();
    if (line) this.last = line;
    else if (this.#over && "error" in this.#over) throw this.#over.error;
    return line;
  }

  #take(event: PullEvent): void {
    switch (event.kind) {
      case "waiting":
        this.#add({ status: "waiting for another pull" });
        break;
      case "retry":
        this.#add({ status: `retrying: ${printable(event.reason)}` });
        break;
      case "listed":
        this.#digest = event.commit;
        this.#add({ status: "pulling manifest" });
        this.#add(this.#bytes(event.cachedBytes, event.bytes));
        break;
      case "bytes":
        if (this.#waiting.at(-1)?.digest !== undefined) this.#waiting.pop();
        this.#add(this.#bytes(event.doneBytes, event.totalBytes));
        break;
    }
  }

  #bytes(completed: number, total: number): OllamaPullStatus {
    const digest = this.#digest;
    return { status: `pulling ${digest.slice(0, 12)}`, digest, total, completed };
  }

  #add(line: OllamaPullStatus): void {
    this.#waiting.push(line);
    this.#wake.resolve();
  }

  #end(over: { error?: unknown }): void {
    this.#over = over;
    this.#wake.resolve();
    this.#ended.resolve();
  }
}
