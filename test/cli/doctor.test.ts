// mlx-serve doctor as a program: of this checkout, and of a copy with something broken.
import { expect, test } from "bun:test";
import { cpSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../support/temporary-folder.ts";

const root = join(import.meta.dir, "../..");
const folder = temporaryFolder();

function run(checkout: string, ...args: string[]) {
  const program = [process.execPath, join(checkout, "src/main.ts"), "doctor", ...args];
  const { stdout, stderr, exitCode } = Bun.spawnSync(program);
  return { stdout: stdout.toString(), stderr: stderr.toString(), exitCode };
}

/** A copy of this checkout in which one text of a file is another. */
function mutated(name: string, file: string, from: string, to: string): string {
  const copy = join(folder, name);
  for (const part of ["src", "ffi", "package.json", "tsconfig.json"]) {
    cpSync(join(root, part), join(copy, part), { recursive: true });
  }
  symlinkSync(join(root, "node_modules"), join(copy, "node_modules"));
  const text = readFileSync(join(copy, file), "utf8");
  expect(text.split(from)).toHaveLength(2);
  writeFileSync(join(copy, file), text.replace(from, to));
  return copy;
}

test("the self-test passes, and its report says so", () => {
  const report = join(folder, "report.json");
  const options = ["--self-test", "--only", "decode", "--report", report];
  const { stdout, stderr, exitCode } = run(root, ...options);
  expect(stdout).toMatch(/^device .*\n/);
  expect(stdout).toMatch(/^attention, decode +\d+ +passed/m);
  expect(stdout).toMatch(/\n\d+ checks in \d+ s: all passed\n$/);
  expect(stderr).toContain("] attention, decode\n");
  expect(exitCode).toBe(0);
  const written = JSON.parse(readFileSync(report, "utf8"));
  expect(written).toMatchObject({ passed: true, checks: { failed: 0 }, from: "a checkout" });
  expect(written.results).toHaveLength(written.checks.all);
  const name = expect.stringContaining("decode");
  expect(written.results[0]).toMatchObject({ name, passed: true });
  expect(JSON.stringify(written)).not.toContain(root);
}, 120_000);

test("--json prints progress and report as objects, and what the machine has", () => {
  const only = "4/2 heads of 64, float32, rotaryDims 64, longBeyond";
  const { stdout, stderr, exitCode } = run(root, "--self-test", "--json", "--only", only);
  expect(JSON.parse(stdout)).toMatchObject({ passed: true, checks: { all: 2, failed: 0 } });
  const events = stderr
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
  expect(events[0]).toMatchObject({ event: "checks", done: 0, check: expect.any(String) });
  expect(exitCode).toBe(0);
  expect(JSON.parse(run(root, "--json").stdout)).toMatchObject({
    deviceName: expect.any(String),
    memory: { roomBytes: expect.any(Number) },
  });
}, 60_000);

test("a broken kernel fails it by name, in the table, in the report and by the exit code", () => {
  // Windows begin a token too late.
  const copy = mutated(
    "window",
    "src/kernels/attention/cpu-attention.ts",
    "    window,\n",
    "    window: window && window - 1,\n",
  );
  const report = join(folder, "broken.json");
  const { stdout, exitCode } = run(copy, "--self-test", "--only", "attention,", "--report", report);
  expect(stdout).toMatch(/^attention, decode +\d+ +\d+ of \d+ failed/m);
  expect(stdout).toMatch(
    /^ {2}failed: attention, decode: 8\/2 heads of 64, float32, window 40, .* \(output: off by [\d.e-]+, where 0\.00001 is allowed\)$/m,
  );
  expect(stdout).not.toMatch(/failed: .*softcap 2/);
  expect(exitCode).toBe(1);
  const written = JSON.parse(readFileSync(report, "utf8"));
  const failed = written.results.filter((each: { passed: boolean }) => !each.passed);
  expect(failed.every(({ name }: { name: string }) => name.includes("window"))).toBe(true);
  expect(written).toMatchObject({ passed: false, checks: { failed: failed.length } });
}, 120_000);

test("native code that ends the process fails what called it, and the rest goes on", () => {
  const copy = mutated(
    "crash",
    "src/kernels/attention/cpu-attention.ts",
    "    return this.#inFloat32(queries, (x) =>",
    '    require("bun:ffi").read.u8(8);\n    return this.#inFloat32(queries, (x) =>',
  );
  const only = "4/2 heads of 64, float32, rotaryDims 64, longBeyond";
  const { stdout, exitCode } = run(copy, "--self-test", "--only", only);
  expect(stdout).toMatch(
    /^ {2}failed: attention, prompt: 4\/2 heads of 64, .* \(ended by SIG\w+: Segmentation fault at address 0x8\)$/m,
  );
  expect(stdout).toMatch(/^attention, decode +1 +passed/m);
  expect(stdout).toContain("1 of 2 checks in ");
  expect(exitCode).toBe(1);
}, 120_000);

test("a report that cannot be written and a check that does not exist are errors", () => {
  const report = join(folder, "absent", "report.json");
  const unwritable = run(root, "--self-test", "--report", report);
  expect(unwritable).toMatchObject({ stdout: "", exitCode: 1 });
  expect(unwritable.stderr).toContain("absent");
  const none = run(root, "--self-test", "--only", "no such check");
  expect(none.stdout).toEndWith("no check has this name\n");
  expect(none.exitCode).toBe(1);
}, 60_000);
