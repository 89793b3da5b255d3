// A client in a separate process that sends small requests one after the other, and prints a line of JSON for each.
//
//   bun scripts/attack/bystander.ts <url> <key>

export type Kind = "health" | "completion" | "schema";

/** Time of the request (wall clock) and latency of its answer. */
export type Sample = { kind: Kind; atMs: number; ms: number; status: number };

const PAUSE_MS = 50;

if (import.meta.main) {
  const [url, key] = process.argv.slice(2) as [string, string];
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${key}` };
  const ask = async (kind: Kind, path: string, body?: object) => {
    const [atMs, begin] = [Date.now(), performance.now()];
    const init = body && { method: "POST", body: JSON.stringify(body), headers };
    const response = await fetch(`${url}${path}`, init);
    await response.arrayBuffer();
    const { status } = response;
    const sample: Sample = { kind, atMs, ms: performance.now() - begin, status };
    process.stdout.write(`${JSON.stringify(sample)}\n`);
    await Bun.sleep(PAUSE_MS);
  };
  const ofFour = { prompt: "One two three four", max_tokens: 1, temperature: 0 };
  const run = process.pid;
  for (let i = 0; ; i++) {
    await ask("health", "/health");
    await ask("completion", "/v1/completions", ofFour);
    // A new schema each time, which must be compiled.
    const schema = { type: "string", enum: [`${run}-${i}`] };
    await ask("schema", "/v1/chat/completions", {
      messages: [{ role: "user", content: "Say it." }],
      response_format: { type: "json_schema", json_schema: { name: "word", schema } },
      max_tokens: 1,
      temperature: 0,
    });
  }
}
