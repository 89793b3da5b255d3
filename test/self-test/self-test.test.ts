// The self-test as processes: what ends one of them fails the check that it was at, and the rest goes on.
import { expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Result, selfTest } from "../../src/self-test/self-test.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const folder = temporaryFolder();

/** A program whose device part has these checks, each with what it does; its other parts have none. */
function programOf(checks: Record<string, string>): string[] {
  const file = join(folder, `${Bun.hash(JSON.stringify(checks))}.ts`);
  writeFileSync(
    file,
    `import { perform, readJob, tell } from ${JSON.stringify(join(import.meta.dir, "../../src/self-test/lines.ts"))};
const job = readJob(process.argv.slice(3));
const { part, only } = job;
const all = part === "device" ? Object.entries(${JSON.stringify(checks)}) : [];
const checks = all.map(([name, body]) => ({ name, body })).filter(({ name }) => name.includes(only));
tell({ kind: "plan", checks: checks.map(({ name }) => name) });
console.log("something that a library prints");
await perform(checks, job, ({ body }) => new Function(\`return \${body}\`)());
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
    ["leaves", "exited with code 3"],
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
    ["device", "engine", "speed", "engine's speed"].map((part) => [
      `the ${part} part's own process`,
      "exited with code 1: MLX sees no GPU",
    ]),
  );
}, 60_000);

test("several processes have a share of the checks each, and go on behind one that ends too early", async () => {
  const pids = join(folder, "pids");
  const told: string[] = [];
  const writesPid = `(process.getBuiltinModule("node:fs").appendFileSync(${JSON.stringify(pids)}, process.pid + "\\n"), {})`;
  const leaves = "process.exit(3)";
  const program = programOf({ a: writesPid, b: leaves, c: writesPid, d: writesPid, e: writesPid });
  const onStart = (...[, , index, count]: [string, string, number, number]) =>
    told.push(`${index + 1}/${count}`);
  const results = await selfTest({ program, processes: 2, onStart });
  expect(shown(results).sort()).toEqual([
    ["a", "passed"],
    ["b", "exited with code 3"],
    ["c", "passed"],
    ["d", "passed"],
    ["e", "passed"],
  ]);
  expect(told).toEqual(["1/5", "2/5", "3/5", "4/5", "5/5"]);
  // a, c and e are one process's; what ended was another, and d is that one's successor's.
  const lines = readFileSync(pids, "utf8").trim().split("\n");
  expect(new Set(lines).size).toBe(2);
  const refuses = join(folder, "refuses-twice.ts");
  writeFileSync(refuses, `process.exit(1);`);
  const refused = await selfTest({ program: [process.execPath, refuses], processes: 2 });
  expect(refused).toHaveLength(4);
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
