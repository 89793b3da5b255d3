// Measures, in a process of its own, that loading a model takes little more memory than its weights.
import { expect } from "bun:test";
import { join } from "node:path";

/** What it takes to load anything: about half of the weights of these tests. */
const BESIDES_MB = 45;

export async function expectLittle(path: string): Promise<{ weightBytes: number }> {
  const program = join(import.meta.dir, "load-memory.ts");
  const child = Bun.spawn([process.execPath, program, path], { stderr: "inherit" });
  const used = JSON.parse(await new Response(child.stdout).text());
  const besides = (used.peak - used.baseline - used.weightBytes) / 1e6;
  const line = `${(used.weightBytes / 1e6).toFixed()} MB in ${used.seconds.toFixed(1)} s`;
  console.log(`loaded ${line}, at most ${besides.toFixed()} MB besides were resident`);
  expect(besides).toBeLessThan(BESIDES_MB);
  return used;
}
