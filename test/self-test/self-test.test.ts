// The self-test as processes: what ends one of them fails the check that it was at, and the rest goes on.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Result, selfTest } from "../../src/self-test/self-test.ts";

const folder = mkdtempSync(join(tmpdir(), "self-test-"));
afterAll(() => rmSync(folder, { recursive: true }));

/** A program whose device part has these checks, each with what it does; its other parts have none. */
function programOf(checks: Record<string, string>): string[] {
  const file = join(folder, `${Bun.hash(JSON.stringify(checks))}.ts`);
  writeFileSync(
    file,
    `import { perform, readJob, tell } from ${JSON.stringify(join(import.meta.dir, "../../src/self-test/lines.ts"))};
const { part, from, only } = readJob(process.argv.slice(3));
const all = part === "device" ? Object.entries(${JSON.stringify(checks)}) : [];
const checks = all.map(([name, body]) => ({ name, body })).filter(({ name }) => name.includes(only));
tell({ kind: "plan", checks: checks.map(({ name }) => name) });
console.log("something that a library prints");
await perform(checks, from, ({ body }) => new Function(\`return \${body}\`)());
`,
  );
  return [process.execPath, file];
}

const shown = (results: readonly Result[]) =>
  results.map(({ name, problem }) => [name, problem ?? "passed"]);

test("a check that ends the process fails by its name, and the others are run", async () => {
  const program = programOf({
    first: "({})",
    "writes where nothing is": "process.kill(process.pid, 'SIGSEGV')",
    throws: "(() => { throw new Error('a wrong shape') })()",
    leaves: "process.exit(3)",
    differs: "({ problem: 'off by 1' })",
    last: "({})",
  });
  expect(shown(await selfTest({ program }))).toEqual([
    ["first", "passed"],
    ["writes where nothing is", expect.stringMatching(/^ended by SIG(SEGV|ILL|TRAP|ABRT)/)],
    ["throws", "a wrong shape"],
    ["leaves", "ended with 3"],
    ["differs", "off by 1"],
    ["last", "passed"],
  ]);
}, 60_000);

test("one that takes too long fails, and the others are run", async () => {
  const program = programOf({
    hangs: "new Promise(() => setInterval(() => {}, 1000))",
    last: "({})",
  });
  expect(shown(await selfTest({ program, checkMs: 3000 }))).toEqual([
    ["hangs", "took longer than 3 s"],
    ["last", "passed"],
  ]);
}, 60_000);

test("a process that does not come to its checks fails, and says why", async () => {
  const file = join(folder, "refuses.ts");
  writeFileSync(file, `console.error("mlx-serve: MLX sees no GPU"); process.exit(1);`);
  expect(shown(await selfTest({ program: [process.execPath, file] }))).toEqual(
    ["device", "engine", "speed"].map((part) => [
      `the ${part} part's own process`,
      "ended with 1: MLX sees no GPU",
    ]),
  );
}, 60_000);

test("checks are chosen by their names, and progress is told", async () => {
  const told: string[] = [];
  const program = programOf({ "a: 1": "({})", "b: 1": "({})", "a: 2": "({})" });
  const onStart = (...[, name, index, count]: [string, string, number, number]) =>
    told.push(`${index + 1}/${count} ${name}`);
  expect(shown(await selfTest({ program, only: "a:", onStart }))).toEqual([
    ["a: 1", "passed"],
    ["a: 2", "passed"],
  ]);
  expect(told).toEqual(["1/2 a: 1", "2/2 a: 2"]);
}, 60_000);
