// The client process of scripts/bench/gpu.ts: sends concurrent requests and reads their streams as they arrive.
// It prints lines of JSON for ./child.ts.
import { eventData, linesOf } from "../../../src/lines.ts";
import type { HttpTask } from "./http.ts";

type Chunk = { choices?: { token_ids?: number[] }[]; error?: { message: string } };

console.log(JSON.stringify("ready"));
for await (const line of linesOf(Bun.stdin.stream())) {
  console.log(JSON.stringify(await measure(JSON.parse(line))));
}

async function measure({ url, prompts, new: maxTokens }: HttpTask) {
  const bodies = prompts.map((prompt) =>
    JSON.stringify({
      prompt,
      max_tokens: maxTokens,
      temperature: 0,
      ignore_eos: true,
      stream: true,
      // Tokens that came together are one event.
      return_token_ids: true,
    }),
  );
  const start = performance.now();
  try {
    return { arrivals: await Promise.all(bodies.map((body) => read(url, body, start))) };
  } catch (error) {
    return { error: String(error) };
  }
}

async function read(url: string, body: string, start: number): Promise<number[]> {
  const headers = { "content-type": "application/json" };
  const response = await fetch(`${url}/v1/completions`, { method: "POST", headers, body });
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  const times: number[] = [];
  for await (const data of eventData(response.body!)) {
    if (data === "[DONE]") continue;
    const time = performance.now() - start;
    const { choices = [], error }: Chunk = JSON.parse(data);
    if (error) throw new Error(error.message);
    for (const _ of choices[0]?.token_ids ?? []) times.push(time);
  }
  return times;
}
