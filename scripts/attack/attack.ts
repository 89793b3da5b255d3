// The type of an attack, and helpers to send arbitrary bytes to the server.
import type { Random } from "../../test/support/random.ts";
import { RawConnection, requestText } from "../../test/support/raw-http.ts";

export type Target = { port: number; key: string };

export type Attack = {
  name: string;
  /** Whether it takes many seconds. */
  isLong?: boolean;
  /** Throws if the server misbehaves. */
  run(target: Target, random: Random): Promise<void>;
};

/** Time limit of answers that cost the server nothing. */
const ANSWER_MS = 20_000;

export const completions = "/v1/completions";
export const chat = "/v1/chat/completions";

/** A completion that runs until it is aborted. */
export const endless = {
  prompt: "Once upon a time",
  max_tokens: 2000,
  ignore_eos: true,
  temperature: 0,
};

export const question = (content: string) => ({
  messages: [{ role: "user", content }],
  max_tokens: 8,
  temperature: 0,
});

export function post(
  { port, key }: Target,
  path: string,
  body: unknown,
  signal?: AbortSignal,
): Promise<Response> {
  return fetch(`http://127.0.0.1:${port}${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${key}` },
    body: typeof body === "string" ? body : JSON.stringify(body),
    ...(signal && { signal }),
  });
}

/** The bytes of a request with the key. */
export function withKey({ key }: Target, ...[path, options = {}]: Parameters<typeof requestText>) {
  const headers = { Authorization: `Bearer ${key}`, ...options.headers };
  return requestText(path, { ...options, headers });
}

/** Throws unless the request is refused with an error object, as invalid or because the queue is full. */
export async function expectRefused(response: Response, statuses: readonly number[]) {
  const text = await response.text();
  if (![...statuses, 429].includes(response.status)) {
    throw new Error(`${response.status}, not ${statuses.join(" or ")}: ${text.slice(0, 300)}`);
  }
  const { error } = JSON.parse(text);
  if (typeof error?.message !== "string") throw new Error(`no error object: ${text}`);
}

/** Sends requests and aborts them all after a while. */
export async function abandon(
  target: Target,
  requests: readonly { path: string; body: unknown }[],
  afterMs: number,
): Promise<void> {
  const controller = new AbortController();
  const { signal } = controller;
  const answers = requests.map(({ path, body }) =>
    post(target, path, body, signal)
      .then((response) => response.text())
      .catch(() => {}),
  );
  await Bun.sleep(afterMs);
  controller.abort();
  await Promise.all(answers);
}

/** The response statuses for these bytes, until the connection ends or stays silent. */
export async function statusesOf(target: Target, bytes: string | Uint8Array): Promise<number[]> {
  const connection = await RawConnection.open(target.port);
  await connection.write(bytes);
  await ended(connection);
  connection.leave();
  return statusesIn(connection);
}

/** The statuses of all responses on a connection. */
export function statusesIn({ received }: RawConnection): number[] {
  return [...received.matchAll(/HTTP\/1\.1 (\d{3}) /g)].map(([, status]) => Number(status));
}

/** Waits until the server has answered and closed the connection. */
async function ended(connection: RawConnection): Promise<void> {
  const late = Promise.withResolvers<never>();
  const timer = setTimeout(
    () => late.reject(new Error(`neither answered nor closed in ${ANSWER_MS} ms`)),
    ANSWER_MS,
  );
  try {
    await Promise.race([connection.ended, late.promise]);
  } finally {
    clearTimeout(timer);
  }
}
