// The one gate: formatting and lint, types, tests. `npm test -- <pattern>` runs the tests that match.
import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const root = join(import.meta.dir, "..");
const bin = (name: string) => join(root, "node_modules", ".bin", name);
const junit = join(mkdtempSync(join(tmpdir(), "mlx-serve-")), "junit.xml");

const passes = (...command: string[]) =>
  Bun.spawnSync(command, { cwd: root, stdio: ["ignore", "inherit", "inherit"] }).exitCode === 0;

const checks = [passes(bin("biome"), "check", "--error-on-warnings"), passes(bin("tsc"))];
const reporter = ["--reporter=junit", `--reporter-outfile=${junit}`];
// Enough for two busy cores; a test that hangs is still found.
const timeout = "--timeout=20000";
const tested = passes(bin("bun"), "test", timeout, ...reporter, ...process.argv.slice(2));

const [tests, failures, skipped] = counts();
const failed = checks.filter((passed) => !passed).length + Math.max(failures, tested ? 0 : 1);
if (skipped > 0) console.log(`${skipped} skipped: what they need is not on this machine`);
console.log(`${tests - skipped + checks.length - failed} passed, ${failed} failed`);
process.exitCode = failed === 0 ? 0 : 1;

/** Tests, failures and skipped tests, from the report's first element. */
function counts(): [number, number, number] {
  try {
    const [, summary = ""] = /<testsuites ([^>]*)>/.exec(readFileSync(junit, "utf8")) ?? [];
    const count = (name: string) => Number(new RegExp(`\\b${name}="(\\d+)"`).exec(summary)?.[1]);
    return [count("tests"), count("failures"), count("skipped")];
  } catch {
    return [0, 0, 0];
  }
}
