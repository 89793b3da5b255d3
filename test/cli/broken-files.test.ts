// Models whose files are not what they should be, told in words by every verb that opens them.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { cpSync, mkdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { defaultModelPath } from "../../ffi/native.ts";
import { type Home, makeHome, mlxServe } from "../support/serve-process.ts";

let home: Home;
beforeAll(() => {
  home = makeHome();
});
afterAll(() => home.remove());

/** With the path of the model behind them. */
const verbs = [["run", "--local"], ["serve", "--port", "0"], ["show"], ["bench", "--model"]];

/** What each verb says of the model, in one line. */
async function expectLines(path: string, message: RegExp): Promise<void> {
  for (const [verb = "", ...flags] of verbs) {
    const { stderr, exitCode } = await mlxServe([verb, ...flags, path], home.env, "Hello");
    expect([verb, stderr.trim()]).toEqual([verb, expect.stringMatching(message)]);
    expect([stderr.trim().split("\n").length, exitCode]).toEqual([1, 1]);
  }
}

test("an empty or cut-off GGUF file is an incomplete download", async () => {
  const path = join(home.env.HOME!, "cut.gguf");
  cpSync(defaultModelPath(), path);
  for (const size of [5_000_000, 0]) {
    truncateSync(path, size);
    await expectLines(
      path,
      new RegExp(
        `^mlx-serve: .*cut\\.gguf: the download is incomplete: .*, found ${size}; download it again$`,
      ),
    );
  }
}, 60_000);

test("an unsupported architecture is named before what else is missing", async () => {
  const path = join(home.env.HOME!, "other");
  mkdirSync(path);
  writeFileSync(join(path, "config.json"), JSON.stringify({ model_type: "unheard-of" }));
  await expectLines(path, /^mlx-serve: .*model_type "unheard-of" is not supported; there are /);
  // With weights, but without a tokenizer.
  cpSync(home.model, path, { recursive: true });
  const config = JSON.parse(readFileSync(join(path, "config.json"), "utf8"));
  writeFileSync(join(path, "config.json"), JSON.stringify({ ...config, model_type: "unheard-of" }));
  rmSync(join(path, "tokenizer.json"));
  await expectLines(path, /^mlx-serve: .*model_type "unheard-of" is not supported; there are /);
  writeFileSync(join(path, "config.json"), JSON.stringify(config));
  await expectLines(path, /^mlx-serve: .*expected a tokenizer in one of tokenizer\.json, /);
}, 60_000);
