// Measures the gain of a second rank on this machine: the throughput of 8 concurrent requests with one thread, and
// with two ranks of one thread each, interleaved. `npm run -s bench:ranks [-- --rounds 15 --max-tokens 64 --ranks 2]`
import { defaultModelPath } from "../../ffi/native.ts";
import { makeHome, type Running, startMlxServe, urlOf } from "../../test/support/serve-process.ts";
import { readFlags } from "../flags.ts";
import { changes, median, told } from "./in-turns.ts";

const { rounds, maxTokens: tokens, ranks } = readFlags({ rounds: 15, maxTokens: 64, ranks: 2 });
const REQUESTS = 8;

const home = makeHome();
const started: Running[] = [];
try {
  const one = await start([]);
  const divided = await start(["--ranks", String(ranks)]);
  // Excludes the first, cold round of each.
  for (const url of [one, divided]) await tokensPerSecond(url);
  const inTurns = [await tokensPerSecond(one)];
  for (let round = 0; round < rounds; round++)
    inTurns.push(await tokensPerSecond(divided), await tokensPerSecond(one));
  const [alone, together] = [0, 1].map((odd) => median(inTurns.filter((_, i) => i % 2 === odd)));
  console.log(
    `${REQUESTS} requests of ${tokens} tokens at once, ${rounds} rounds: ${alone!.toFixed(1)} tokens/s with one thread, ${together!.toFixed(1)} with ${ranks} ranks of one: ${told(changes(inTurns))}`,
  );
} finally {
  for (const each of started) each.kill("SIGTERM");
  await Promise.all(started.map(({ ended }) => ended));
  home.remove();
}

async function start(args: readonly string[]): Promise<string> {
  const own = ["serve", "--model", defaultModelPath(), "--port", "0", "--threads", "1"];
  const server = startMlxServe([...own, ...args], home.env);
  started.push(server);
  return await urlOf(server);
}

async function tokensPerSecond(url: string): Promise<number> {
  const startMs = performance.now();
  await Promise.all(
    Array.from({ length: REQUESTS }, async (_, i) => {
      const prompt = `Client ${i}: tell me about the sea.`;
      const body = { prompt, max_tokens: tokens, ignore_eos: true, temperature: 0 };
      const headers = { "content-type": "application/json" };
      const init = { method: "POST", headers, body: JSON.stringify(body) };
      const response = await fetch(`${url}/v1/completions`, init);
      if (!response.ok) throw new Error(await response.text());
      await response.arrayBuffer();
    }),
  );
  return (REQUESTS * tokens * 1000) / (performance.now() - startMs);
}
