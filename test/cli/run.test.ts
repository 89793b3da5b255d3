import { expect, test } from "bun:test";
import { join } from "node:path";

const main = join(import.meta.dir, "../../src/main.ts");

async function mlxServe(args: string[], input = "") {
  const child = Bun.spawn([process.execPath, main, ...args], {
    stdin: new Blob([input]),
    stdout: "pipe",
    stderr: "pipe",
  });
  const [stdout, stderr] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ]);
  return { stdout, stderr, exitCode: await child.exited };
}

test("run answers a question with the default model, and says how fast", async () => {
  const { stdout, stderr, exitCode } = await mlxServe(["run", "What is the capital of France?"]);
  expect(stdout).toBe("The capital of France is Paris.\n");
  expect(stderr).toMatch(/^\n8 tokens, [\d.]+ tokens\/s, first after \d+ ms\n$/);
  expect(exitCode).toBe(0);
}, 60_000);

test("run takes a model by name, and ends at the most tokens", async () => {
  const { stdout, stderr } = await mlxServe(["run", "default", "Count.", "--max-tokens", "3"]);
  expect(stderr).toStartWith("\n3 tokens, ");
  expect(stdout.trim().length).toBeGreaterThan(0);
}, 60_000);

test("run without a prompt is a chat that knows what was said", async () => {
  const lines = "My dog is called Waldo, and he is brown.\nWhat is the name of my dog?\n";
  const { stdout, exitCode } = await mlxServe(["run", "--max-tokens", "24"], lines);
  expect(stdout).toContain("/clear begins anew");
  expect(stdout.trim().split("\n").at(-1)).toContain("Waldo");
  expect(exitCode).toBe(0);
}, 60_000);

test("run refuses what it does not understand in one line", async () => {
  const wrong: [string[], RegExp][] = [
    [["run", "no-such/model", "hi"], /^mlx-serve: .*no-such\/model/],
    [["run", "../../etc/passwd", "hi"], /^mlx-serve: /],
    [["run", "--temperature", "warm", "Hello there"], /^mlx-serve: --temperature must be a number/],
    [["run", "--dtype", "int4", "Hello there"], /^mlx-serve: --dtype must be float32, /],
    [["run", "--speed", "9", "Hello there"], /^mlx-serve: .*--speed/],
    [["run", "default", "two", "prompts"], /^mlx-serve: run takes a model and one prompt/],
  ];
  for (const [args, message] of wrong) {
    const { stdout, stderr, exitCode } = await mlxServe(args);
    expect({ args, stderr: stderr.trim() }).toMatchObject({
      stderr: expect.stringMatching(message),
    });
    expect(stderr.trim()).not.toContain("\n");
    expect([stdout, exitCode]).toEqual(["", 1]);
  }
}, 60_000);
