// A client of scripts/bench/gpu.ts, a process of its own: sends so many requests at once and reads their
// streams as fast as they come. It answers lines of JSON, as ./child.ts wants it.
import { linesOf } from "./child.ts";
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
  let rest = "";
  for await (const text of response.body!.pipeThrough(new TextDecoderStream())) {
    const time = performance.now() - start;
    const events = (rest + text).split("\n\n");
    rest = events.pop()!;
    for (const event of events) {
      if (!event.startsWith("data: {")) continue;
      const { choices = [], error }: Chunk = JSON.parse(event.slice("data: ".length));
      if (error) throw new Error(error.message);
      for (const _ of choices[0]?.token_ids ?? []) times.push(time);
    }
  }
  return times;
}
