// What every refusal has to be, and what has to be true when a fault is over.
import { expect } from "bun:test";
import { homedir, tmpdir } from "node:os";
import { ErrorResponse } from "../../src/api/error.ts";
import type { TestServer } from "./server.ts";

/** Stands in what is sent to the server, and must not come back. */
export const SECRET = "ossifrage";

type Refusal = { status: number; param?: string | null; code?: string | null };

/** A status of its own, and an OpenAI error object that tells nothing of us or of what was sent. */
export async function expectRefusal(
  answer: Response | { status: number; headers: Headers; body: string },
  { status, ...expected }: Refusal,
): Promise<ErrorResponse["error"]> {
  const text = answer instanceof Response ? await answer.text() : answer.body;
  expect([answer.status, text]).toEqual([status, text]);
  expect(answer.headers.get("content-type")).toStartWith("application/json");
  return expectError(JSON.parse(text), expected);
}

/** An OpenAI error object, as a body or as an event of a stream. */
export function expectError(
  value: unknown,
  expected: Omit<Refusal, "status"> = {},
): ErrorResponse["error"] {
  const { error } = ErrorResponse.strict().parse(value);
  expect(error).toMatchObject(expected);
  const text = JSON.stringify(value);
  for (const leak of [SECRET, tmpdir(), homedir(), process.cwd(), "node_modules", "mlx_"]) {
    expect(text).not.toContain(leak);
  }
  // Pointers, files and places in them.
  expect(text).not.toMatch(/0x[\da-f]{4}|\.(ts|safetensors|gguf|json|so)\b|:\d+:\d+/i);
  return error;
}

const normal = { prompt: "Once upon", max_tokens: 8, ignore_eos: true, temperature: 0 };

/** Nothing is left of what has happened, and a normal request is answered as ever. */
export async function expectUnharmed(server: TestServer): Promise<void> {
  await server.settled();
  const response = await server.post("/v1/completions", normal);
  expect(response.status).toBe(200);
  expect(await response.json()).toMatchObject({
    choices: [{ finish_reason: "length" }],
    usage: { completion_tokens: 8 },
  });
  await server.settled();
}
