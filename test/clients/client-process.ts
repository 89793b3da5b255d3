// A client in its own process and language. It takes calls on standard input and stays up, so that only the
// client itself closes its connections.
import { afterAll, beforeAll } from "bun:test";
import { join } from "node:path";
import type {
  MessageCountTokensParams,
  MessageCreateParams,
} from "@anthropic-ai/sdk/resources/messages";
import type {
  BatchCreateParams,
  BatchListParams,
  ChatCompletionCreateParams,
  CompletionCreateParams,
  EmbeddingCreateParams,
  FileListParams,
} from "openai/resources";
import type { ResponseCreateParams } from "openai/resources/responses/responses";
import { linesOf } from "../../src/lines.ts";
import { pythonWithClients } from "../support/python-clients.ts";

/** The package's method and its arguments. */
export type Question =
  | { method: "chat"; body: ChatCompletionCreateParams }
  | { method: "completions"; body: CompletionCreateParams }
  | { method: "embeddings"; body: EmbeddingCreateParams }
  | { method: "responses"; body: ResponseCreateParams }
  | { method: "models"; body: Record<string, never> }
  | { method: "model"; body: string }
  | { method: "upload"; body: { name: string; text: string } }
  | { method: "files"; body: FileListParams }
  | { method: "file" | "file content" | "delete file"; body: string }
  | { method: "create batch"; body: BatchCreateParams }
  | { method: "batches"; body: BatchListParams }
  | { method: "batch" | "cancel batch"; body: string };

/** The same of Anthropic's package. */
export type AnthropicQuestion =
  | { method: "messages"; body: MessageCreateParams }
  | { method: "final message"; body: MessageCreateParams }
  | { method: "count tokens"; body: MessageCountTokensParams };

export type Call = Question & Calling;
export type AnthropicCall = AnthropicQuestion & Calling;

type Calling = {
  url: string;
  key: string;
  /** Default: the package's own. */
  retries?: number;
  /** Abort the stream after this many chunks. */
  take?: number;
};

/** What the package threw. */
export type CallFailure = {
  class: string;
  status: number | null;
  code: string | null;
  param: string | null;
  type: string | null;
  message: string | null;
  retryAfter: string | null;
  requestId: string | null;
};

export class CallError extends Error {
  readonly failure: CallFailure;

  constructor(failure: CallFailure) {
    super(JSON.stringify(failure));
    this.name = "CallError";
    this.failure = failure;
  }
}

/** What a call failed with; throws if it did not fail. */
export async function failureOf(call: Promise<unknown>): Promise<CallFailure> {
  const error = await call.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof CallError)) throw new Error("it did not fail", { cause: error });
  return error.failure;
}

type Line = { id: number; value?: unknown; error?: CallFailure };

export class ClientProcess {
  readonly #child;
  readonly #waiting = new Map<number, PromiseWithResolvers<unknown>>();
  readonly #reading: Promise<void>;
  #nextId = 1;

  constructor(...command: string[]) {
    this.#child = Bun.spawn(command, {
      stdin: "pipe",
      stdout: "pipe",
      stderr: "inherit",
      // No proxy or key from the environment.
      env: { PATH: process.env.PATH, PYTHONDONTWRITEBYTECODE: "1" },
    });
    this.#reading = this.#read();
  }

  /** The package's result, a list of chunks for a stream. Throws a CallError. */
  ask(call: Call | AnthropicCall, signal?: AbortSignal): Promise<unknown> {
    const id = this.#nextId++;
    const waiting = Promise.withResolvers<unknown>();
    this.#waiting.set(id, waiting);
    this.#send({ ...call, id, abortable: signal !== undefined });
    signal?.addEventListener("abort", () => this.#send({ abort: id }));
    return waiting.promise;
  }

  async stop(): Promise<void> {
    await this.#child.stdin.end();
    await this.#reading;
  }

  #send(line: object): void {
    this.#child.stdin.write(`${JSON.stringify(line)}\n`);
    void this.#child.stdin.flush();
  }

  async #read(): Promise<void> {
    for await (const line of linesOf(this.#child.stdout)) this.#settle(JSON.parse(line));
    for (const { reject } of this.#waiting.values()) reject(new Error("the client has ended"));
  }

  #settle({ id, value, error }: Line): void {
    const waiting = this.#waiting.get(id)!;
    this.#waiting.delete(id);
    if (error) waiting.reject(new CallError(error));
    else waiting.resolve(value);
  }
}

const script = (name: string) => join(import.meta.dir, name);

type Language = "node" | "Python";

/** A package's process for the tests of a `describe`. */
export function useClient(
  start: (language: Language) => ClientProcess,
  language: Language,
): Pick<ClientProcess, "ask"> {
  let client: ClientProcess;
  // Python's packages may have to be installed first.
  beforeAll(() => {
    client = start(language);
  }, 300_000);
  afterAll(() => client.stop());
  return { ask: (...asked) => client.ask(...asked) };
}

/** OpenAI's package for a language. */
export function startOpenAi(language: Language): ClientProcess {
  return language === "node"
    ? new ClientProcess("node", script("openai-client.mjs"))
    : new ClientProcess(pythonWithClients(), script("openai-client.py"));
}

/** The same of Anthropic. */
export function startAnthropic(language: Language): ClientProcess {
  return language === "node"
    ? new ClientProcess("node", script("anthropic-client.mjs"))
    : new ClientProcess(pythonWithClients(), script("anthropic-client.py"));
}
