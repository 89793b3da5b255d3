// Files of requests for batches, and what comes back.
import type { TestServer } from "./server.ts";

export type RequestLine = { custom_id: string; method: string; url: string; body: object };

/** A chat for each number, answered greedily; every other one is longer. */
export function chatLine(number: number, more: object = {}): RequestLine {
  return {
    custom_id: `chat-${number}`,
    method: "POST",
    url: "/v1/chat/completions",
    body: {
      messages: [{ role: "user", content: `Line ${number} asks for something.` }],
      temperature: 0,
      max_tokens: 4 + (number % 2) * 4,
      ...more,
    },
  };
}

export const chatLines = (count: number, more: object = {}) =>
  Array.from({ length: count }, (_, i) => chatLine(i + 1, more));

export const jsonLines = (lines: readonly object[]) =>
  lines.map((line) => `${JSON.stringify(line)}\n`).join("");

export type OutputLine = {
  id: string;
  custom_id: string;
  response: { status_code: number; request_id: string; body: Record<string, unknown> } | null;
  error: { code: string; message: string } | null;
};

export function parseLines(text: string): OutputLine[] {
  return text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as OutputLine);
}

/** What a line says, without what differs from one request to the next: its ids, its time, what was cached. */
export function saidIn({ custom_id: customId, response, error }: OutputLine): string {
  const { id: _, created: __, usage, ...body } = response?.body ?? {};
  const { prompt_tokens_details: ___, ...counts } = (usage ?? {}) as Record<string, unknown>;
  return JSON.stringify([customId, response?.status_code, body, counts, error]);
}

export type BatchState = {
  id: string;
  status: string;
  errors: {
    data: { code: string; line: number | null; message: string; param: string | null }[];
  } | null;
  input_file_id: string;
  output_file_id: string | null;
  error_file_id: string | null;
  request_counts: { total: number; completed: number; failed: number };
  expires_at: number;
};

/** Requests, or what is to be in a file as it is. */
type Content = string | Uint8Array<ArrayBuffer> | readonly object[];

const order = { endpoint: "/v1/chat/completions", completion_window: "24h" };

/** Calls a server's endpoints for files and batches. */
export class BatchCaller {
  readonly #get: TestServer["get"];

  constructor(get: TestServer["get"], key?: string) {
    const headers = key === undefined ? {} : { authorization: `Bearer ${key}` };
    this.#get = (path, init = {}) =>
      get(path, { ...init, headers: { ...init.headers, ...headers } });
  }

  async upload(content: Content, fields: Record<string, string> = {}) {
    const form = new FormData();
    const text = Array.isArray(content)
      ? jsonLines(content)
      : (content as string | Uint8Array<ArrayBuffer>);
    for (const [name, value] of Object.entries({ purpose: "batch", ...fields })) {
      form.append(name, value);
    }
    form.append("file", new File([text], "requests.jsonl"));
    return await this.#get("/v1/files", { method: "POST", body: form });
  }

  async create(file: string, more: object = {}): Promise<Response> {
    return await this.#get("/v1/batches", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ input_file_id: file, ...order, ...more }),
    });
  }

  /** Uploads the requests and starts a batch of them. */
  async start(content: Content, more: object = {}): Promise<BatchState> {
    const { id } = (await (await this.upload(content)).json()) as { id: string };
    return (await (await this.create(id, more)).json()) as BatchState;
  }

  async batch(id: string): Promise<BatchState> {
    return (await (await this.#get(`/v1/batches/${id}`)).json()) as BatchState;
  }

  async cancel(id: string): Promise<BatchState> {
    const response = await this.#get(`/v1/batches/${id}/cancel`, { method: "POST" });
    return (await response.json()) as BatchState;
  }

  /** Waits until the batch has ended, or has this status. */
  async until(id: string, status?: string): Promise<BatchState> {
    const ended = ["completed", "failed", "expired", "cancelled"];
    for (;;) {
      const batch = await this.batch(id);
      if (batch.status === status || ended.includes(batch.status)) return batch;
      await Bun.sleep(10);
    }
  }

  async remove(file: string): Promise<Response> {
    return await this.#get(`/v1/files/${file}`, { method: "DELETE" });
  }

  async content(file: string): Promise<string> {
    return await (await this.#get(`/v1/files/${file}/content`)).text();
  }

  /** The lines of a file that a batch has written; none if there is none. */
  async lines(file: string | null): Promise<OutputLine[]> {
    return file === null ? [] : parseLines(await this.content(file));
  }
}
