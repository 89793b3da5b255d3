// Runs a package for node as a program: a JSON line in for each call, one out for its answer.
import { createInterface } from "node:readline";

/** @import { CallFailure } from "./client-process.ts" */

/**
 * A stream is answered with its events, at most `take` of them. `failureOf` throws errors that are not the package's.
 *
 * @template Client
 * @param {new (options: { baseURL: string, apiKey: string, maxRetries?: number }) => Client} Client
 * @param {new (...args: any[]) => AsyncIterable<unknown>} Stream
 * @param {(client: Client, call: any, options: { signal: AbortSignal }) => Promise<unknown>} run
 * @param {(error: unknown) => CallFailure} failureOf
 */
export async function answerCalls(Client, Stream, run, failureOf) {
  /** @type {Map<number, AbortController>} */
  const controllers = new Map();
  /** @type {Map<string, Client>} */
  const clients = new Map();

  /** @param {number} id @param {any} call */
  const answer = async (id, { url, key, retries, take, ...call }) => {
    const controller = new AbortController();
    controllers.set(id, controller);
    const name = JSON.stringify([url, key, retries]);
    const options = retries === undefined ? {} : { maxRetries: retries };
    const client = clients.get(name) ?? new Client({ baseURL: url, apiKey: key, ...options });
    clients.set(name, client);
    try {
      const value = await run(client, call, { signal: controller.signal });
      if (!(value instanceof Stream)) return { value };
      const events = [];
      for await (const event of value) if (events.push(event) === take) break;
      return { value: events };
    } catch (error) {
      return { error: failureOf(error) };
    }
  };

  for await (const line of createInterface({ input: process.stdin })) {
    const { id, abort, ...call } = JSON.parse(line);
    if (abort) controllers.get(abort)?.abort();
    else void answer(id, call).then((said) => console.log(JSON.stringify({ id, ...said })));
  }
}
