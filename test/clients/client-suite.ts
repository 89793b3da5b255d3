// What holds for every client: limits, failures, and that a request ends when its client leaves.
import { expect, test } from "bun:test";
import { type ClientServer, type Seen, singleKey } from "./client-server.ts";

export type Asked = {
  seed?: number;
  maxTokens?: number;
  stop?: string;
  key?: string;
  /** 0 in place of the client's own number. */
  retries?: 0;
  signal?: AbortSignal;
};

export type Answer = { text: string; finish?: unknown };

export type Client = {
  whole(asked?: Asked): Promise<Answer>;
  /** The same, streamed; rejects if the stream ends with an error. */
  streamed(asked?: Asked): Promise<Answer>;
  /** Leaves a long stream after some of its pieces. */
  leave(): Promise<void>;
  /** What it says of an error that a call has thrown. */
  errorOf?(call: Promise<unknown>): Promise<unknown>;
  /** Parts of these errors: over the key's limit, from a server that shuts down, in a stream, of one's own abort. */
  errors: { limited: object; draining: object; broken: object; left: object };
  /** How an answer ends before a stop string, if the API has those. */
  stopped?: unknown;
  /** The status of a server that shuts down. */
  draining?: 503 | 529;
  hasSeeds?: boolean;
  /** After how many milliseconds it asks again if it is told to wait a second; false if it never does. */
  comesBackMs: readonly [least: number, most: number] | false;
};

/** What a call failed with; throws if it did not fail. */
export async function errorIn(call: PromiseLike<unknown>): Promise<unknown> {
  const [result] = await Promise.allSettled([call]);
  if (result.status === "rejected") return result.reason;
  throw new Error("it did not fail");
}

export function testClient(server: ClientServer, client: Client): void {
  const { whole, streamed, errors, stopped, comesBackMs } = client;
  const { errorOf = errorIn, draining = 503, hasSeeds = true } = client;
  const statuses = () => server.seen.map(({ status }) => status);
  const waiting = () => server.metric("mlx_serve_requests_waiting");
  const tokens = () => server.metric("mlx_serve_inter_token_seconds_count");
  const expectWait = (refused: Seen, answered: Seen) => {
    const [least, most] = comesBackMs || [0, 0];
    expect(answered.startMs - refused.startMs).toBeWithin(least, most);
  };

  if (stopped !== undefined)
    test("gets an answer that ends before a stop string", async () => {
      const { text } = await whole();
      const stop = text.slice(9, 12);
      const expected = { text: text.slice(0, text.indexOf(stop)), finish: stopped };
      expect(await whole({ stop })).toEqual(expected);
      expect(await streamed({ stop })).toEqual(expected);
    });

  if (hasSeeds) {
    test("gets the same answer for the same seed alone", async () => {
      const [first, same, other] = [await whole(), await whole(), await whole({ seed: 8 })];
      expect(same.text).toBe(first.text);
      expect(other.text).not.toBe(first.text);
    });

    test("gets the same answers 16 at once as one after the other", async () => {
      const seeds = Array.from({ length: 16 }, (_, seed) => seed);
      const answer = async (seed: number) =>
        (await (seed % 2 === 0 ? whole : streamed)({ seed, maxTokens: 12 })).text;
      const together = await Promise.all(seeds.map(answer));
      const alone: string[] = [];
      for (const seed of seeds) alone.push(await answer(seed));
      expect(together).toEqual(alone);
      expect(new Set(together).size).toBe(16);
    });
  }

  test("that is over its limit is told so, and when to come back", async () => {
    const other = await server.occupy(singleKey);
    const error = await errorOf(whole({ key: singleKey, retries: 0 }));
    expect(error).toMatchObject(errors.limited);
    expect(statuses()).toEqual([429]);
    other.end();
  });

  test("that finds the server shutting down is told so", async () => {
    server.serving.admission.phase = "draining";
    const error = await errorOf(whole({ retries: 0 }));
    server.serving.admission.phase = "open";
    expect(error).toMatchObject(errors.draining);
    expect(statuses()).toEqual([draining]);
  });

  if (comesBackMs !== false) {
    test("comes back by itself when it was over its limit", async () => {
      const other = await server.occupy(singleKey);
      const answer = whole({ key: singleKey });
      await server.until(() => statuses().includes(429));
      other.end();
      const { text } = await answer;
      // The other request ends in between.
      expect(statuses()).toEqual([429, 200, 200]);
      const [refused, , answered] = server.seen as [Seen, Seen, Seen];
      expectWait(refused, answered);
      expect((await whole()).text).toBe(text);
    });

    test("comes back by itself when the server was shutting down", async () => {
      const { admission } = server.serving;
      admission.phase = "draining";
      const answer = streamed();
      await server.until(() => statuses().includes(draining));
      admission.phase = "open";
      const { text } = await answer;
      expect(statuses()).toEqual([draining, 200]);
      expectWait(...(server.seen as [Seen, Seen]));
      expect((await whole()).text).toBe(text);
    });
  }

  test("gets an error in the middle of a stream, and does not ask again", async () => {
    const before = await tokens();
    const broken = errorOf(streamed({ maxTokens: 4000 }));
    await server.until(async () => (await tokens()) > before + 8);
    await server.serving.engine.kill();
    expect(await broken).toMatchObject(errors.broken);
    expect(statuses()).toEqual([200]);
    // The engine is back.
    await whole();
  });

  test("that leaves in the middle of a stream ends its request", async () => {
    const before = await server.gone();
    await client.leave();
    await server.settled();
    expect(await server.gone()).toBe(before + 1);
  });

  test.each([
    ["before the first token", streamed],
    ["before its answer", whole],
  ])("that leaves %s ends its request", async (_, ask) => {
    const other = await server.occupy();
    const leaving = new AbortController();
    const left = errorOf(ask({ signal: leaving.signal }));
    await server.until(async () => (await waiting()) === 1);
    leaving.abort();
    expect(await left).toMatchObject(errors.left);
    await server.until(() => server.seen.length === 1);
    other.end();
    expect(server.seen).toMatchObject([{ status: 499 }]);
  });
}
