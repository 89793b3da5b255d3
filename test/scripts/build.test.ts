import { afterAll, beforeAll, expect, test } from "bun:test";
import { copyFileSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

// The executable alone in an empty folder, with nothing in its environment but where that folder is.
const folder = mkdtempSync(join(tmpdir(), "executable-"));
const executable = join(folder, "mlx-serve");

function run(...args: string[]) {
  const { stdout, stderr, exitCode } = Bun.spawnSync([executable, ...args], {
    cwd: folder,
    env: { HOME: folder, TMPDIR: folder },
  });
  return { stdout: stdout.toString(), stderr: stderr.toString(), exitCode };
}

beforeAll(() => {
  const built = mkdtempSync(join(tmpdir(), "build-"));
  const script = join(import.meta.dir, "../../scripts/build.ts");
  const build = Bun.spawnSync([process.execPath, script, join(built, "mlx-serve")]);
  expect(build.stderr.toString()).toBe("");
  copyFileSync(join(built, "mlx-serve"), executable);
  rmSync(built, { recursive: true });
}, 60_000);

afterAll(() => rmSync(folder, { recursive: true }));

test("the executable runs MLX in its Worker with nothing around it", () => {
  const { stdout, stderr, exitCode } = run("doctor");
  expect(stderr).toBe("");
  expect(stdout).toMatch(/mlx +\d+\.\d+\.\d+, /);
  expect(stdout).toMatch(/matmul +\d+ GFLOP\/s/);
  expect(exitCode).toBe(0);
}, 30_000);

test("its libraries are extracted once, and no run leaves anything else behind", () => {
  run("doctor");
  run("version");
  expect(readdirSync(folder).sort()).toEqual([".cache", "mlx-serve"]);
  expect(readdirSync(join(folder, ".cache/mlx-serve/libraries"))).toHaveLength(1);
}, 30_000);

test("an unknown verb is refused with what there is", () => {
  expect(run("dance")).toEqual({
    stdout: "",
    stderr: expect.stringMatching(/^mlx-serve: no verb dance; there are doctor, /),
    exitCode: 1,
  });
});
