// The server that clients are tested against, and a log of their requests.
import { afterAll, afterEach, beforeAll, beforeEach, setDefaultTimeout, spyOn } from "bun:test";
import { keyEntry } from "../support/keys.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

export const apiKey = "sk-clients";
/** A key limited to one concurrent request. */
export const singleKey = "sk-single";

/** The batch size. */
const MAX_BATCH = 16;

/** A finished request, from the server's log. */
export type Seen = { status: number; startMs: number };

type LogLine = { status: number; ms: number };

export type ClientServer = TestServer & {
  /** The base URL for clients. */
  baseUrl: string;
  /** The finished requests. */
  seen: Seen[];
  /** Occupies the whole batch, or with `singleKey` its one request, until it is ended. */
  occupy(key?: string): Promise<{ end(): void }>;
  /** The number of requests whose client disconnected. */
  gone(): Promise<number>;
  until(is: () => boolean | Promise<boolean>): Promise<void>;
};

/** Control tokens have no text of their own. */
export const noControlTokens = { "256": -100, "257": -100, "258": -100 };

/** For the tests of a file: `seen` is empty before each, and nothing is under way after it. */
export function useClientServer(): ClientServer {
  const server = {} as ClientServer;
  // Some tests wait a second or two for a retry, and the machine may be busy.
  setDefaultTimeout(30_000);
  beforeAll(async () => {
    Object.assign(server, await startClientServer());
  });
  beforeEach(() => {
    server.seen.length = 0;
  });
  afterEach(() => server.settled());
  afterAll(() => server.stop());
  return server;
}

async function startClientServer(): Promise<ClientServer> {
  const server = await startTestServer({
    args: ["--api-key", apiKey, "--max-batch-size", String(MAX_BATCH)],
    keys: { keys: [keyEntry("single", singleKey, { limits: { concurrent: 1 } })] },
    pooling: "mean_tokens",
  });
  const seen: Seen[] = [];
  for (const level of ["info", "error"] as const) {
    spyOn(server.serving.log, level).mockImplementation((line: LogLine, message?: string) => {
      if (message !== "request") return;
      seen.push({ status: line.status, startMs: performance.now() - line.ms });
    });
  }
  return {
    ...server,
    baseUrl: `${server.url}/v1`,
    seen,
    async occupy(key = apiKey) {
      const leaving = new AbortController();
      const body = {
        messages: [{ role: "user", content: "Never stop." }],
        n: key === singleKey ? 1 : MAX_BATCH,
        logit_bias: noControlTokens,
        stream: true,
      };
      const response = await server.post("/v1/chat/completions", body, {
        headers: { authorization: `Bearer ${key}` },
        signal: leaving.signal,
      });
      // A client that stops reading is disconnected.
      response.text().catch(() => {});
      return { end: () => leaving.abort() };
    },
    gone: () =>
      server.metric('mlx_serve_requests_total{key="api-key-1",tier="HIGH",outcome="gone"}'),
    async until(is) {
      const deadline = performance.now() + 10_000;
      while (!(await is())) {
        if (performance.now() > deadline) throw new Error("it did not come");
        await Bun.sleep(10);
      }
    },
  };
}
