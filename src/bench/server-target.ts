// Measures any server with OpenAI's API over HTTP, by the arrival of its streamed chunks.
import { eventData } from "../lines.ts";
import type { BenchRequest, Sample, Target } from "./target.ts";

export type ServerTargetOptions = {
  /** The server's URL, with or without a trailing /v1. */
  url: string;
  /** Name of the model; by default the first one that the server lists. */
  model?: string | undefined;
  apiKey?: string | undefined;
  /** Whether to use /v1/chat/completions instead of /v1/completions. */
  chat: boolean;
};

export async function openServerTarget(options: ServerTargetOptions): Promise<Target> {
  const url = options.url.replace(/\/+$/, "").replace(/\/v1$/, "");
  const client = new Client(url, options.apiKey, options.chat);
  const model = options.model ?? (await client.firstModel());
  const server = await client.introduce(model);
  return {
    about: { kind: "server", model, url, ...(server !== undefined && { server }) },
    send: (request, onFirst) => client.send(model, request, onFirst),
    memory: async () => ({}),
    close: async () => {},
  };
}

/** Fields that are read from a chunk. Its text is in `text` for completions, and in `delta` for chats. */
type Chunk = {
  choices?: {
    text?: string;
    delta?: { content?: string | null; reasoning_content?: string | null };
  }[];
  usage?: {
    prompt_tokens: number;
    completion_tokens: number;
    prompt_tokens_details?: { cached_tokens?: number } | null;
  } | null;
  system_fingerprint?: string | null;
  error?: { message?: string };
};

class Client {
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly #chat: boolean;
  /** Whether the server accepts fields that OpenAI does not define. */
  #takesExtras = true;

  constructor(url: string, apiKey: string | undefined, chat: boolean) {
    this.#url = url;
    this.#chat = chat;
    this.#headers = {
      "content-type": "application/json",
      ...(apiKey !== undefined && { authorization: `Bearer ${apiKey}` }),
    };
  }

  async firstModel(): Promise<string> {
    const response = await this.#fetch("/v1/models");
    if (!response.ok) throw await refusal(response);
    const list = (await response.json()) as { data?: { id?: string }[] };
    const id = list.data?.[0]?.id;
    if (id === undefined) throw new Error(`${this.#url} lists no model: choose one with --model`);
    return id;
  }

  /** Detects whether the server accepts extra fields; returns the name that the server reports, if any. */
  async introduce(model: string): Promise<string | undefined> {
    const request = { prompt: "Hello", maxTokens: 1 };
    const asked = await this.#ask(model, request);
    this.#takesExtras = asked.status !== 400 && asked.status !== 422;
    const response = this.#takesExtras ? asked : await this.#ask(model, request);
    let name: string | undefined;
    for await (const { chunk } of chunksOf(response))
      name ??= chunk.system_fingerprint ?? undefined;
    return name;
  }

  async send(model: string, request: BenchRequest, onFirst?: () => void): Promise<Sample> {
    const startMs = performance.now();
    const arrivalsMs: number[] = [];
    let usage: Chunk["usage"];
    for await (const { chunk, atMs } of chunksOf(await this.#ask(model, request))) {
      usage = chunk.usage ?? usage;
      if (!hasText(chunk)) continue;
      if (arrivalsMs.push(atMs) === 1) onFirst?.();
    }
    const endMs = performance.now();
    if (!usage) throw new Error(`${this.#url} sends no usage, so its tokens cannot be counted`);
    // An answer of only control tokens has no text; it counts as arriving at the end.
    if (arrivalsMs.length === 0) arrivalsMs.push(endMs);
    return {
      startMs,
      arrivalsMs,
      endMs,
      promptTokens: usage.prompt_tokens,
      cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
      tokens: usage.completion_tokens,
    };
  }

  #ask(model: string, { prompt, maxTokens, priority }: BenchRequest): Promise<Response> {
    const body = {
      model,
      ...(this.#chat ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
      max_tokens: maxTokens,
      temperature: 0,
      stream: true,
      stream_options: { include_usage: true },
      ...(this.#takesExtras && { ignore_eos: true, min_tokens: maxTokens }),
      // Only LOW is sent: a request can lower the priority that its API key's tier grants, but not raise it.
      ...(priority === "LOW" && { service_tier: "flex" }),
    };
    const path = this.#chat ? "/v1/chat/completions" : "/v1/completions";
    return this.#fetch(path, { method: "POST", body: JSON.stringify(body) });
  }

  async #fetch(path: string, init: RequestInit = {}): Promise<Response> {
    try {
      // Bun's timeout is off, since a request may be queued for long.
      return await fetch(this.#url + path, { ...init, headers: this.#headers, timeout: false });
    } catch (error) {
      throw new Error(`${this.#url} cannot be reached (${(error as Error).message})`);
    }
  }
}

function hasText({ choices = [] }: Chunk): boolean {
  return choices.some(({ text, delta }) =>
    Boolean(text || delta?.content || delta?.reasoning_content),
  );
}

/** Yields the chunks of a stream with their arrival times. */
async function* chunksOf(response: Response): AsyncGenerator<{ chunk: Chunk; atMs: number }> {
  if (!response.ok || !response.body) throw await refusal(response);
  for await (const data of eventData(response.body)) {
    const atMs = performance.now();
    if (data === "[DONE]") continue;
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error) throw new Error(`the server says: ${chunk.error.message}`);
    yield { chunk, atMs };
  }
}

async function refusal(response: Response): Promise<Error> {
  const said = (await response.text()).slice(0, 300).trim();
  return new Error(`${response.url} answers ${response.status}: ${said}`);
}
