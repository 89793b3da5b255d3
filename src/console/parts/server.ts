// Requests to the page's server. The key goes into a header, never into a URL.
import { keep, kept } from "./kept.ts";

/** An error response of the server. */
class RefusalError extends Error {
  override name = "RefusalError";
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

let key = kept("key");

export function setKey(next: string | undefined): void {
  key = next;
  keep("key", next);
}

export const hasKey = () => key !== undefined;

export type Ask = { method?: string; body?: unknown; signal?: AbortSignal };

/** Sends a request; throws a RefusalError with the server's message if the response is an error. */
export async function ask(path: string, { method, body, signal }: Ask = {}): Promise<Response> {
  const response = await fetch(path, {
    method: method ?? (body === undefined ? "GET" : "POST"),
    headers: {
      ...(key !== undefined && { authorization: `Bearer ${key}` }),
      ...(body !== undefined && { "content-type": "application/json" }),
    },
    ...(body !== undefined && { body: JSON.stringify(body) }),
    ...(signal && { signal }),
    credentials: "omit",
    redirect: "error",
  });
  if (response.ok) return response;
  throw new RefusalError(response.status, refusalOf(await response.text(), response.status));
}

export async function askJson<T>(path: string, options?: Ask): Promise<T> {
  return (await (await ask(path, options)).json()) as T;
}

/** Reads the error message: OpenAI's errors are objects, Ollama's strings. */
function refusalOf(text: string, status: number): string {
  try {
    const { error } = JSON.parse(text) as { error?: string | { message?: string } };
    const message = typeof error === "string" ? error : error?.message;
    if (message !== undefined) return message;
  } catch {
    // The text is not JSON, so the status is reported instead.
  }
  return `The server responded with status ${status}.`;
}

/** Yields the parts of a streamed body, each terminated by `separator`. */
export async function* partsOf(response: Response, separator: string): AsyncGenerator<string> {
  let rest = "";
  const decoder = new TextDecoderStream() as ReadableWritablePair<string, BufferSource>;
  const reader = response.body!.pipeThrough(decoder).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split(separator);
      rest = parts.pop()!;
      yield* parts;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

export type ServerEvent = { event: string; data: string };

/** Reads server-sent events over fetch, because EventSource cannot send a key. */
export async function* serverEvents(response: Response): AsyncGenerator<ServerEvent> {
  for await (const part of partsOf(response, "\n\n")) {
    const lines = part.split("\n");
    const field = (name: string) =>
      lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
    const data = field("data");
    if (data !== undefined) yield { event: field("event") ?? "message", data };
  }
}

export const messageOf = (error: unknown) =>
  error instanceof Error ? error.message : String(error);
