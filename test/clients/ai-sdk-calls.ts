// What the AI SDK does with refusals, whatever API it speaks.
import { expect } from "bun:test";
import { APICallError } from "ai";
import type { Seen } from "./client-server.ts";

/** What a call failed with; throws if it did not fail. */
export async function callErrorOf(call: PromiseLike<unknown>): Promise<APICallError> {
  const error = await call.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (!APICallError.isInstance(error)) throw new Error("it did not fail", { cause: error });
  return error;
}

/** A second, from Retry-After; by default it would wait for two. */
export function expectWaited(refused: Seen, answered: Seen): void {
  const waitedMs = answered.startMs - refused.startMs;
  expect(waitedMs).toBeGreaterThan(900);
  expect(waitedMs).toBeLessThan(1900);
}
