import { expect, test } from "bun:test";
import { mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { commandSettings } from "../../src/config/arguments.ts";
import { loadSettings } from "../../src/config/load.ts";

/** What the settings become in a shell of their own, in another folder. */
function elsewhere(args: string[], env: Record<string, string>) {
  const loaded = loadSettings(args, env);
  const written = commandSettings(loaded);
  const here = process.cwd();
  try {
    process.chdir("/");
    const again = loadSettings([...written.flags], { HOME: env.HOME, ...written.variables });
    expect(again.settings).toEqual(loaded.settings);
  } finally {
    process.chdir(here);
  }
  return written;
}

test("settings mean the same as flags with full paths, in another folder and shell", () => {
  const home = realpathSync(mkdtempSync(join(tmpdir(), "arguments-")));
  const cwd = process.cwd();
  try {
    process.chdir(home);
    writeFileSync("own.toml", 'port = 9\nmodel = "./from-file"\n');
    const args = [
      ...["./model", "--config", "own.toml", "--keys-file=~/keys.json", "--data-dir", "../data"],
      ..."--no-batching --alias a,b --alias=c*=default --kv-memory 2GiB -t 3".split(" "),
      ...["--allowed-origins", '["https://x.example"]', "--allowed-origins", "https://y.example"],
    ];
    const env = { HOME: home, MLX_SERVE_MAX_TOKENS: "12", MLX_SERVE_PREFIX_CACHING: "off" };
    expect(elsewhere(args, env)).toEqual({
      flags: [
        "--prefix-caching=off",
        "--max-tokens=12",
        `--config=${home}/own.toml`,
        `--keys-file=${home}/keys.json`,
        `--data-dir=${join(home, "../data")}`,
        "--batching=false",
        "--served-model-name=a,b",
        "--served-model-name=c*=default",
        "--kv-memory=2GiB",
        "--threads=3",
        '--allowed-origins=["https://x.example"]',
        "--allowed-origins=https://y.example",
        `--model=${home}/model`,
      ],
      variables: {},
    });
  } finally {
    process.chdir(cwd);
    rmSync(home, { recursive: true });
  }
});

test("a secret is no flag", () => {
  const args = ["--api-key", "one", "--api-key", '["two,three"]'];
  expect(elsewhere(args, { HOME: "/nowhere" })).toEqual({
    flags: [],
    variables: { MLX_SERVE_API_KEY: '["one","two,three"]' },
  });
  expect(elsewhere([], { HOME: "/nowhere", MLX_SERVE_API_KEY: "a,b" }).variables).toEqual({
    MLX_SERVE_API_KEY: '["a","b"]',
  });
});
