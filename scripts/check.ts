// The one gate: formatting and lint, types, tests. `npm test -- <pattern>` runs the tests that match.
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { slowest } from "./slow-tests.ts";

const root = join(import.meta.dir, "..");
const bin = (name: string) => join(root, "node_modules", ".bin", name);
/** The temporary folder of the tests, removed with everything that killed processes leave behind. */
const temporary = mkdtempSync(join(tmpdir(), "mlx-serve-"));
const junit = join(temporary, "junit.xml");

// One thread per server of a test: two processes with a thread per core would stall each other.
const env = { MLX_SERVE_THREADS: "1", ...process.env, TMPDIR: temporary };

const passes = async (...command: string[]) =>
  (await Bun.spawn(command, { cwd: root, env, stdio: ["ignore", "inherit", "inherit"] }).exited) ===
  0;

const checks = await Promise.all([
  passes(bin("biome"), "check", "--error-on-warnings"),
  passes(bin("tsc")),
  // Browser code has other globals.
  passes(bin("tsc"), "-p", "src/console"),
]);
// Runs two test processes. Each keeps its loaded modules from one test file to the next.
const processes = ["--parallel=2", "--no-isolate"];
const reporter = ["--reporter=junit", `--reporter-outfile=${junit}`];
// Suffices on two busy cores, and still finds a hanging test.
const timeout = "--timeout=20000";
const options = [timeout, ...processes, ...reporter];
const tested = await passes(bin("bun"), "test", ...options, ...process.argv.slice(2));

const report = existsSync(junit) ? readFileSync(junit, "utf8") : "";
const [tests, failures, skipped] = counts();
const failed = checks.filter((passed) => !passed).length + Math.max(failures, tested ? 0 : 1);
const { lines, unexplained } = slowest(report);
if (tests > 0) console.log(lines.join("\n"));
if (unexplained > 0) console.log(`${unexplained} tests took longer than a test may (see above)`);
if (skipped > 0) console.log(`${skipped} skipped: this machine lacks their requirements`);
console.log(`${tests - skipped + checks.length - failed} passed, ${failed} failed`);
rmSync(temporary, { recursive: true, force: true });
process.exitCode = failed === 0 ? 0 : 1;

/** Numbers of tests, failures and skipped tests, from the report's root element. */
function counts(): [number, number, number] {
  const [, summary = ""] = /<testsuites ([^>]*)>/.exec(report) ?? [];
  const count = (name: string) => Number(new RegExp(`\\b${name}="(\\d+)"`).exec(summary)?.[1] ?? 0);
  return [count("tests"), count("failures"), count("skipped")];
}
