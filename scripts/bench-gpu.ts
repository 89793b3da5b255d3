// The engine's throughput with prompts of random tokens, all of one length, through its own API:
// `bun scripts/bench-gpu.ts <folder> [<requests>,...] [<prompt tokens>] [<new tokens>]`
import { parseArgs } from "node:util";
import { engineSetup } from "../ffi/native.ts";
import { EngineClient } from "../src/engine/client.ts";

const { positionals } = parseArgs({ allowPositionals: true });
const [folder, counts = "1,5,16,64,128", prompt = "128", tokens = "256"] = positionals;
if (folder === undefined) throw new Error("name the folder of a model");
const [promptTokens, maxTokens] = [Number(prompt), Number(tokens)];

const engine = await EngineClient.start(engineSetup());
const options = { maxBatch: 256, tokenBudget: 8192, prefixCaching: false };
const { vocabulary } = await engine.load("model", folder, options);
for (const count of counts.split(",").map(Number)) {
  await measure(count); // Kernels are compiled when they are first used.
  console.log(await measure(count));
}
await engine.stop();

async function measure(count: number): Promise<string> {
  const start = performance.now();
  const since = () => (performance.now() - start) / 1000;
  const answers = await Promise.all(
    Array.from({ length: count }, async () => {
      const prompt = Uint32Array.from({ length: promptTokens }, () =>
        Math.floor(Math.random() * vocabulary),
      );
      const request = { prompt, maxTokens, sampling: { temperature: 0 } };
      const events = engine.submit("model", request);
      const times: number[] = [];
      for (;;) {
        const read = await events.read();
        if (read.length === 0) return { first: times[0]!, last: times.at(-1)! };
        times.push(since());
      }
    }),
  );
  const first = Math.max(...answers.map((answer) => answer.first));
  const last = Math.max(...answers.map((answer) => answer.last));
  const mean = answers.reduce((sum, answer) => sum + answer.first, 0) / count;
  const decode = (count * (maxTokens - 1)) / (last - first);
  const whole = (count * maxTokens) / last;
  return (
    `${count} x ${promptTokens}+${maxTokens}: decode ${decode.toFixed(0)} tokens/s, ` +
    `all ${whole.toFixed(0)}, first token after ${(mean * 1000).toFixed(1)} ms`
  );
}
