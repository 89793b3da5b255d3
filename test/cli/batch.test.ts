// mlx-serve batch run: a batch without a server.
import { afterAll, expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { chatLine, chatLines, jsonLines, parseLines, saidIn } from "../support/batches.ts";
import { makeHome, mlxServe, startMlxServe } from "../support/serve-process.ts";

const home = makeHome();
afterAll(() => home.remove());
const folder = dirname(home.model);
const pathOf = (name: string) => join(folder, name);

function write(name: string, content: string | readonly object[]): string {
  const text = typeof content === "string" ? content : jsonLines(content);
  writeFileSync(pathOf(name), text);
  return pathOf(name);
}

const argsFor = (input: string, output: string) => {
  return ["batch", "run", input, "-o", pathOf(output), "--model", home.model];
};
const batch = (input: string, output: string) => mlxServe(argsFor(input, output), home.env);
const linesOf = (name: string) => parseLines(readFileSync(pathOf(name), "utf8"));

test("answers every line in order, to any endpoint, and leaves nothing but the answers", async () => {
  const text = { ...chatLine(2), url: "/v1/completions", body: { prompt: "x", max_tokens: 2 } };
  const wrong = chatLine(4, { temperature: -1 });
  const input = write("mixed.jsonl", [chatLine(1), text, chatLine(3), wrong, chatLine(5)]);
  const { stdout, stderr, exitCode } = await batch(input, "mixed.out");
  expect(stdout).toBe("");
  expect(stderr).toContain(`4 of 5 lines answered, 1 failed: ${pathOf("mixed.out.errors")}\n`);
  // A line has failed.
  expect(exitCode).toBe(1);
  const output = linesOf("mixed.out");
  expect(output.map((line) => line.custom_id)).toEqual(["chat-1", "chat-2", "chat-3", "chat-5"]);
  expect(output[1]!.response!.body).toMatchObject({ object: "text_completion" });
  expect(linesOf("mixed.out.errors")).toMatchObject([
    { custom_id: "chat-4", response: { status_code: 400 } },
  ]);
  const left = readdirSync(folder).filter((name) => name.startsWith("mixed"));
  expect(left.sort()).toEqual(["mixed.jsonl", "mixed.out", "mixed.out.errors"]);
  // What is there is not overwritten.
  const again = await batch(input, "mixed.out");
  expect(again.exitCode).toBe(1);
  expect(again.stderr).toMatch(/^mlx-serve: .*mixed\.out already exists: /);
}, 60_000);

test("--json prints progress and result as objects, one a line", async () => {
  const input = write("json.jsonl", [chatLine(1), chatLine(2, { temperature: -1 })]);
  const args = [...argsFor(input, "json.out"), "--json"];
  const { stdout, stderr, exitCode } = await mlxServe(args, home.env);
  const [output, errors] = [pathOf("json.out"), pathOf("json.out.errors")];
  expect(JSON.parse(stdout)).toEqual({ total: 2, completed: 1, failed: 1, output, errors });
  const events = stderr
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
  expect(new Set(events.map(({ event }) => event))).toEqual(new Set(["load", "lines"]));
  expect(events.at(-1)).toEqual({ event: "lines", done: 2, total: 2, failed: 1 });
  expect(exitCode).toBe(1);
}, 60_000);

test("goes on after it was killed, and after Ctrl-C, and says the same as without", async () => {
  const lines = chatLines(300, { max_tokens: 16, ignore_eos: true });
  const input = write("long.jsonl", lines);
  for (const [signal, exitCode] of [
    ["SIGKILL", 137],
    ["SIGINT", 130],
  ] as const) {
    const running = startMlxServe(argsFor(input, "long.out"), home.env);
    await running.says(/\d+ of 300 lines/);
    // Each answer is written to the log of the database.
    const log = pathOf("long.out.batch/batches.sqlite-wal");
    const writes = new Set<number>();
    while (writes.size < 8) {
      writes.add(statSync(log, { throwIfNoEntry: false })?.mtimeMs ?? 0);
      await Bun.sleep(1);
    }
    running.kill(signal);
    const ended = await running.ended;
    expect(ended.exitCode).toBe(exitCode);
    if (signal === "SIGINT") {
      const [, answered] = /^(\d+) of 300 lines are done \(.*\): rerun to resume$/m.exec(
        ended.stderr,
      )!;
      expect(Number(answered)).toBeWithin(1, 300);
    }
    expect(existsSync(pathOf("long.out"))).toBe(false);
  }
  const other = write("other.jsonl", chatLines(3));
  const changed = await batch(other, "long.out");
  expect(changed.stderr).toContain("has changed since");
  const { stderr, exitCode } = await batch(input, "long.out");
  const [shown, ...rest] = stderr.split("\n");
  // How far it was when it went on.
  expect(shown).toMatch(/^[1-9]\d* of 300 lines$/);
  expect([rest, exitCode]).toEqual([["300 of 300 lines answered", ""], 0]);
  await batch(input, "whole.out");
  expect(linesOf("long.out").map(saidIn)).toEqual(linesOf("whole.out").map(saidIn));
  expect(readdirSync(folder).filter((name) => name.includes("out.batch"))).toEqual([]);
}, 120_000);

test("refuses what is no file of requests, with the lines that are wrong", async () => {
  const input = write("wrong.jsonl", `${JSON.stringify(chatLine(1))}\n{}\nx\n`);
  const { stderr, exitCode } = await batch(input, "wrong.out");
  expect(exitCode).toBe(1);
  expect(stderr.split("\n")).toEqual([
    "line 2: Missing required parameter: 'custom_id'.",
    "line 3: The line is not valid JSON.",
    `mlx-serve: ${input} is not a file of requests`,
    "",
  ]);
  expect(readdirSync(folder).filter((name) => name.startsWith("wrong"))).toEqual(["wrong.jsonl"]);
}, 60_000);

test("refuses what it does not understand in one line", async () => {
  const wrong: [string[], RegExp, number][] = [
    [["batch"], /^mlx-serve: usage: mlx-serve batch run /, 2],
    [["batch", "walk", "in.jsonl"], /^mlx-serve: usage: /, 2],
    [["batch", "run"], /^mlx-serve: usage: /, 2],
    [["batch", "run", "in.jsonl"], /^mlx-serve: usage: /, 2],
    [["batch", "run", "in.jsonl", "--output="], /^mlx-serve: usage: /, 2],
    [["batch", "run", "a.jsonl", "b.jsonl", "-o", "x"], /^mlx-serve: usage: /, 2],
    [["batch", "run", "in.jsonl", "-o", "x", "--speed", "9"], /^mlx-serve: .*--speed/, 2],
    [["batch", "run", "/none.jsonl", "-o", "x"], /^mlx-serve: .* cannot be read \(ENOENT\)/, 1],
  ];
  for (const [args, message, code] of wrong) {
    const { stderr, exitCode } = await mlxServe(args, home.env);
    expect([stderr, exitCode]).toEqual([expect.stringMatching(message), code]);
    expect(stderr.trim().split("\n").length).toBe(1);
  }
}, 60_000);
