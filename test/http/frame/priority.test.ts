// The effect of a key's tier, measured from outside: LOW load does not delay a HIGH key, and LOW requests do
// not starve. With the real model, whose steps take much longer than a message between threads.
import { describe, expect, test } from "bun:test";
import { defaultModelPath } from "../../../ffi/native.ts";
import { keyEntry } from "../../support/keys.ts";
import { settled, useTestServer } from "../../support/use-server.ts";

const keys = (["HIGH", "NORMAL", "LOW"] as const).map((tier) =>
  keyEntry(tier.toLowerCase(), `key-${tier}`, { tier }),
);

const server = useTestServer(
  {
    model: defaultModelPath(),
    args: ["--max-batch-size", "4", "--token-budget", "64", "--block-pool-size", "64"],
    keys: { keys },
  },
  settled,
);

type Tier = (typeof keys)[number]["tier"];

/** Steps that the engine has made. */
const steps = async () => (await server.serving.engine.stats())[0]!.steps;

function ask(tier: Tier, request: object, path = "/v1/completions"): Promise<Response> {
  const headers = { authorization: `Bearer key-${tier}` };
  return server.post(path, { temperature: 0, ...request }, { headers });
}

/** The number of steps until the first token. */
async function stepsToFirst(tier: Tier): Promise<number> {
  const before = await steps();
  await (await ask(tier, { prompt: "Paris is the capital of", max_tokens: 1 })).arrayBuffer();
  return (await steps()) - before;
}

/** As much LOW work as the server can take, until the function returned is called. */
async function saturate(): Promise<() => Promise<void>> {
  const stop = new AbortController();
  const load = Array.from({ length: 8 }, async (_, i) => {
    for (let round = 0; !stop.signal.aborted; round++) {
      // Long prompts and long answers, all different.
      const prompt = `${i} ${round} `.repeat(20);
      const response = await ask("LOW", { prompt, max_tokens: 12, ignore_eos: true });
      await response.arrayBuffer();
    }
  });
  while ((await server.metric("mlx_serve_requests_running")) < 4) await Bun.sleep(5);
  while ((await server.metric("mlx_serve_requests_waiting")) === 0) await Bun.sleep(5);
  return async () => {
    stop.abort();
    await Promise.all(load);
  };
}

describe("under a load of LOW requests that fills the server", () => {
  test("a HIGH key waits for its first token at most two steps longer than in an idle server", async () => {
    expect(await stepsToFirst("HIGH")).toBe(1);
    const end = await saturate();
    const found: number[] = [];
    for (let i = 0; i < 8; i++) found.push(await stepsToFirst("HIGH"));
    expect(await server.metric("mlx_serve_preemptions_total")).toBeGreaterThan(0);
    await end();
    // A busy engine replies between steps, so one more step has passed when the count is read.
    expect(Math.max(...found)).toBeLessThanOrEqual(1 + 2 + 1);
  }, 60_000);

  test("a LOW request finishes while NORMAL ones keep coming", async () => {
    const stop = new AbortController();
    const flood = Array.from({ length: 8 }, async () => {
      while (!stop.signal.aborted) {
        const more = { prompt: "And then", max_tokens: 10, ignore_eos: true };
        await (await ask("NORMAL", more)).arrayBuffer();
      }
    });
    while ((await server.metric("mlx_serve_requests_running")) < 4) await Bun.sleep(5);
    const start = performance.now();
    const response = await ask("LOW", { prompt: "Patience", max_tokens: 4, ignore_eos: true });
    const waitedMs = performance.now() - start;
    stop.abort();
    await Promise.all(flood);
    expect(response.status).toBe(200);
    // One level of priority is worth ten seconds of waiting; after that it outranks new requests.
    expect(waitedMs).toBeWithin(9000, 30_000);
  }, 60_000);
});

describe("the tier of a request", () => {
  /** The priority that the engine sees. */
  async function tierOf(tier: Tier, path: string, request: object = {}): Promise<string> {
    const asked = ask(tier, { prompt: "x", max_tokens: 4, ignore_eos: true, ...request }, path);
    for (;;) {
      const [request] = (await server.serving.engine.stats())[0]!.requests;
      if (!request) continue;
      await (await asked).arrayBuffer();
      return request.priority;
    }
  }

  test("is the key's, and never higher", async () => {
    for (const tier of ["HIGH", "NORMAL", "LOW"] as const) {
      expect(await tierOf(tier, "/v1/completions")).toBe(tier);
      expect(await tierOf(tier, "/v1/completions", { service_tier: "priority" })).toBe(tier);
    }
  }, 30_000);

  test("is LOW on batch routes, and for service_tier flex", async () => {
    expect(await tierOf("HIGH", "/v1/batch/completions")).toBe("LOW");
    expect(await tierOf("HIGH", "/v1/completions", { service_tier: "flex" })).toBe("LOW");
  });

  test("is in the response if the request names one, and in each event of a stream", async () => {
    const messages = [{ role: "user", content: "x" }];
    for (const [path, prompt] of [
      ["/v1/completions", { prompt: "x" }],
      ["/v1/chat/completions", { messages }],
    ] as const) {
      const told = async (tier: Tier, request: object) => {
        const whole = await ask(tier, { ...prompt, max_tokens: 1, ...request }, path);
        return ((await whole.json()) as { service_tier?: string }).service_tier;
      };
      expect(await told("NORMAL", {})).toBeUndefined();
      expect(await told("NORMAL", { service_tier: "priority" })).toBe("default");
      expect(await told("HIGH", { service_tier: "auto" })).toBe("priority");
      expect(await told("HIGH", { service_tier: "flex" })).toBe("flex");
      const asked = { ...prompt, max_tokens: 2, stream: true, service_tier: "flex" };
      const events = (await (await ask("HIGH", asked, path)).text()).split("\n\n");
      const chunks = events.filter((event) => event.startsWith("data: {"));
      expect(chunks.length).toBeGreaterThan(1);
      for (const chunk of chunks) expect(chunk).toContain('"service_tier":"flex"');
    }
  });
});
