// The client of scripts/bench/http.ts: reads streams at full speed and counts their tokens.

type Task = { url: string; prompts: string[]; tokens: number };

const { url, prompts, tokens } = (await Bun.stdin.json()) as Task;
const start = performance.now();
const counts = await Promise.all(prompts.map(read));
console.log(JSON.stringify({ counts, ms: performance.now() - start }));

async function read(prompt: string): Promise<number> {
  const response = await fetch(`${url}/v1/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      prompt,
      max_tokens: tokens,
      temperature: 0,
      ignore_eos: true,
      stream: true,
      stream_options: { include_usage: true },
    }),
  });
  const text = await response.text();
  return Number(/"completion_tokens":(\d+)/.exec(text)?.[1]);
}
