// The scripts, run by the shells that are here. zsh and fish are often not: what they would run is then only read.
import { beforeAll, describe, expect, test } from "bun:test";
import { chmodSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { completionScript } from "../../src/cli/completions.ts";
import { defaultVerb, verbs } from "../../src/cli/verbs.ts";
import { settingList } from "../../src/config/settings.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const root = temporaryFolder();
const env = {
  ...process.env,
  PATH: `${join(root, "bin")}:${process.env.PATH}`,
  HF_HUB_CACHE: join(root, "hub"),
  MLX_SERVE_CACHE: join(root, "own"),
};

const scripts = {
  bash: completionScript("bash", verbs, defaultVerb),
  zsh: completionScript("zsh", verbs, defaultVerb),
  fish: completionScript("fish", verbs, defaultVerb),
};
const path = (shell: string) => join(root, `script.${shell}`);

beforeAll(() => {
  for (const [shell, text] of Object.entries(scripts)) writeFileSync(path(shell), text);
  for (const name of ["org--one", "org--two", "other--one"]) {
    const snapshot = join(env.HF_HUB_CACHE, `models--${name}`, "snapshots", "a".repeat(40));
    mkdirSync(snapshot, { recursive: true });
    writeFileSync(join(snapshot, "config.json"), "{}");
  }
  mkdirSync(join(root, "bin"));
  mkdirSync(join(root, "work"));
  for (const name of ["a.toml", "b c.toml"]) writeFileSync(join(root, "work", name), "");
  const program = join(root, "bin", "mlx-serve");
  const main = join(import.meta.dir, "../../src/main.ts");
  writeFileSync(program, `#!/bin/sh\nexec ${process.execPath} ${main} "$@"\n`);
  chmodSync(program, 0o755);
});

function shell(command: string[]): string[] {
  const { stdout, stderr } = Bun.spawnSync(command, { env, cwd: join(root, "work") });
  expect(stderr.toString()).toBe("");
  return stdout.toString().split("\n").slice(0, -1);
}

/** What bash offers for the last of these words. */
function bash(...words: string[]): string[] {
  const script = `source "$1"; shift; COMP_WORDS=(mlx-serve "$@"); COMP_CWORD=$#
    _mlx_serve mlx-serve && (( \${#COMPREPLY[@]} == 0 )) || printf '%s\\n' "\${COMPREPLY[@]}"`;
  return shell(["bash", "--norc", "-c", script, "bash", path("bash"), ...words]);
}

describe("bash", () => {
  test("completes verbs", () => {
    expect(bash("")).toEqual(verbs.map(({ name }) => name));
    expect(bash("s")).toEqual(["serve", "stop", "service", "show"]);
    expect(bash("help", "ver")).toEqual(["version"]);
    expect(bash("completions", "")).toEqual(["bash", "zsh", "fish"]);
    expect(bash("keys", "r")).toEqual(["revoke"]);
  });

  test("completes flags, of the default verb too", () => {
    expect(bash("run", "--t")).toEqual(["--temperature", "--top-p", "--top-k"]);
    expect(bash("doctor", "-")).toEqual(["--self-test", "--only", "--report", "--json", "--help"]);
    const flags = ["--max-body-size", "--max-batch-size", "--max-batches"];
    expect(bash("serve", "--max-b")).toEqual(flags);
    expect(bash("--max-b")).toEqual(bash("serve", "--max-b"));
    expect(bash("--port", "1", "--no-")).toEqual(["--no-batching", "--no-prefix-caching"]);
    expect(bash("serve", "--")).toHaveLength(settingList.length + 1);
  });

  test("completes values, after every spelling of a flag", () => {
    expect(bash("serve", "--dtype", "")).toEqual(["auto", "float32", "float16", "bfloat16"]);
    expect(bash("serve", "--dtype", "=", "b")).toEqual(["bfloat16"]);
    expect(bash("serve", "--dtype", "=")).toHaveLength(4);
    expect(bash("run", "--dtype", "f")).toEqual(["float32", "float16"]);
    expect(bash("serve", "--port", "")).toEqual([]);
    expect(bash("serve", "--config", "")).toEqual(["a.toml", "b c.toml"]);
    expect(bash("serve", "--chat-template-file", "b")).toEqual(["b c.toml"]);
  });

  test("completes models by their names, and by paths", () => {
    expect(bash("run", "or")).toEqual(["org/one", "org/two"]);
    expect(bash("serve", "-m", "other/")).toEqual(["other/one"]);
    expect(bash("--model", "=", "other/")).toEqual(["other/one"]);
    expect(bash("show", "./a")).toEqual(["./a.toml"]);
    expect(bash("pull", "")).toEqual([]);
  });

  test("is told to use it for mlx-serve", () => {
    const script = 'source "$1"; complete -p mlx-serve';
    expect(shell(["bash", "--norc", "-c", script, "bash", path("bash")])).toEqual([
      "complete -F _mlx_serve mlx-serve",
    ]);
  });
});

/** Every flag stands in it, and the text beside it. */
function expectSettings(script: string, spelled: (flag: string) => string): void {
  for (const { flag, default: written } of settingList) {
    expect(script).toContain(spelled(written === "true" ? flag.replace("--", "--no-") : flag));
  }
  for (const { name, summary } of verbs) {
    expect(script).toContain(name);
    expect(script).toContain(summary);
  }
}

const missing = (name: string) => (Bun.which(name) ? "" : ` (${name} is not installed here)`);

describe("zsh", () => {
  test("has every verb and setting", () => {
    expectSettings(scripts.zsh, (flag) => `'${flag}:`);
    expect(scripts.zsh).toStartWith("#compdef mlx-serve\n");
    expect(scripts.zsh).toContain("'serve --dtype') compadd -- auto float32 float16 bfloat16 ;;");
  });

  /** What zsh's own functions are called with for the last of these words. */
  function zsh(...words: string[]): string[] {
    const script = `compdef() {}
      compadd() { [[ $1 == -a ]] && print -l -- $names || print -l -- "\${@[2,-1]}" }
      _describe() { print -l -- $items }
      _files() { print files } ; _message() { print "message $1" } ; compset() {}
      source "$1"; shift; words=(mlx-serve "$@"); CURRENT=$(( $# + 1 )); _mlx_serve`;
    return shell(["zsh", "-f", "-c", script, "zsh", path("zsh"), ...words]);
  }

  test.skipIf(!Bun.which("zsh"))(`runs it${missing("zsh")}`, () => {
    expect(zsh("")).toEqual(verbs.map(({ name, summary }) => `${name}:${summary}`));
    expect(zsh("serve", "--")).toHaveLength(settingList.length + 1);
    expect(zsh("--")).toEqual(zsh("serve", "--"));
    expect(zsh("serve", "--dtype", "")).toEqual(["auto", "float32", "float16", "bfloat16"]);
    expect(zsh("serve", "--dtype=b")).toEqual(["auto", "float32", "float16", "bfloat16"]);
    expect(zsh("serve", "--port", "")).toEqual(["message The port to listen on"]);
    expect(zsh("serve", "--config", "")).toEqual(["files"]);
    expect(zsh("run", "")).toEqual(["org/one", "org/two", "other/one", "files"]);
  });
});

describe("fish", () => {
  test("has every verb and setting", () => {
    expectSettings(scripts.fish, (flag) => ` -l ${flag.slice(2)} `);
    expect(scripts.fish).toContain(" -l dtype -r -f -a 'auto float32 float16 bfloat16' ");
  });

  /** What fish offers for the end of this line. */
  function fish(line: string): string[] {
    const script = "source $argv[1]; complete -C $argv[2]";
    const found = shell(["fish", "--no-config", "-c", script, path("fish"), line]);
    return found.map((each) => each.split("\t")[0]!).sort();
  }

  test.skipIf(!Bun.which("fish"))(`runs it${missing("fish")}`, () => {
    expect(fish("mlx-serve s")).toEqual(["serve", "show"]);
    expect(fish("mlx-serve serve --max-b")).toEqual(["--max-batch-size", "--max-body-size"]);
    expect(fish("mlx-serve --max-b")).toEqual(["--max-batch-size", "--max-body-size"]);
    expect(fish("mlx-serve run --max-b")).toEqual([]);
    expect(fish("mlx-serve serve --dtype b")).toEqual(["bfloat16"]);
    expect(fish("mlx-serve serve --config ")).toEqual(["a.toml", "b c.toml"]);
    expect(fish("mlx-serve run or")).toEqual(["org/one", "org/two"]);
  });
});
