// The command line as a program of its own: what it prints, and how it ends.
import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Glob } from "bun";
import { settingKeys } from "../../src/cli/run.ts";
import { defaultVerb, verbs } from "../../src/cli/verbs.ts";
import { settingList } from "../../src/config/settings.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const runSettings = new Set<string>(settingKeys);
const root = join(import.meta.dir, "../..");
const main = join(root, "src/main.ts");
const folder = temporaryFolder();
const env = { HOME: folder, MLX_SERVE_CACHE: folder };

function run(...args: string[]) {
  const { stdout, stderr, exitCode } = Bun.spawnSync([process.execPath, main, ...args], { env });
  return { stdout: stdout.toString(), stderr: stderr.toString(), exitCode };
}

test("help lists the verbs, the exit codes and the environment", () => {
  const { stdout, stderr, exitCode } = run("help");
  expect([stderr, exitCode]).toEqual(["", 0]);
  for (const { name, summary } of verbs) {
    expect(stdout).toMatch(new RegExp(`^  ${name}\\b.*  ${RegExp.escape(summary)}$`, "m"));
  }
  for (const code of [0, 1, 2, 130]) expect(stdout).toMatch(new RegExp(`^  ${code} +\\w`, "m"));
  for (const name of ["BACKEND", "MLXC", "THREADS", "CACHE", "LOG", "URL", "FFI_TRACE"]) {
    expect(stdout).toContain(`  MLX_SERVE_${name} `);
  }
  for (const flag of ["--help", "-h"]) expect(run(flag).stdout).toBe(stdout);
});

test("every verb answers --help, and does nothing else", () => {
  for (const { name, flags = [], settings } of verbs.filter((verb) => verb.name !== "help")) {
    const { stdout, stderr, exitCode } = run(name, "--help");
    expect([stderr, exitCode]).toEqual(["", 0]);
    expect(stdout).toStartWith(`mlx-serve ${name}`);
    for (const { flag } of [...flags, ...(settings ? settingList : [])]) {
      expect(stdout).toContain(flag);
    }
    expect(run("help", name).stdout).toBe(stdout);
  }
});

test("the help of serve fits a terminal of 80 columns", () => {
  const lines = run("serve", "-h").stdout.split("\n");
  expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(80);
});

test("--help after -- is an argument", () => {
  const { stderr, exitCode } = run("show", "--", "--help");
  expect(stderr).toStartWith('mlx-serve: no model is named "--help"');
  expect(exitCode).toBe(1);
});

test("wrong usage ends with 2, in one line", () => {
  const lines = {
    dance: /^no verb dance; there are serve, .*, help$/,
    constructor: /^no verb constructor; /,
    "ls --frobnicate": /--frobnicate/,
    "ls what": /what/,
    list: /^no verb list; did you mean ls\?$/,
    serv: /^no verb serv; did you mean serve\?$/,
    "keys list": /^no verb keys list; did you mean ls\?$/,
    "keys what": /^usage: mlx-serve keys add/,
    "-v": /^-v: unknown setting; did you mean --verbose or --version\?$/,
    "ps -v": /^ps: there is no flag -v$/,
    "ps --jsno": /^ps: there is no flag --jsno; did you mean --json\?$/,
    "run --temprature=1 Hi": /^run: there is no flag --temprature; did you mean --temperature\?$/,
    "bench swep": /^bench takes one mode of .*; did you mean sweep\?$/,
    pull: /^usage: mlx-serve pull <model>/,
    "pull a b": /^usage: mlx-serve pull <model>/,
    rm: /^usage: mlx-serve rm/,
    "rm default": /^default is the model served if none is named \(.*, which does not exist\), /,
    "rm ../x": /^"..\/x" is not the name of a repo/,
    "show a b": /^usage: mlx-serve show/,
    "stop a b": /^stop takes one model at most$/,
    "batch go": /^usage: mlx-serve batch/,
    "launch emacs": /^launch takes one of /,
    "service instal": /^service takes one of install, .*, logs; did you mean install\?$/,
    "service dance": /^service takes one of install, .*, logs$/,
    "service stop now": /^service stop takes no arguments$/,
    "doctor now": /now/,
    "doctor --report file": /^--only and --report are for --self-test$/,
    "version now": /now/,
    "help run ls": /^help takes one verb$/,
    "help dance": /^no verb dance; /,
    "completions csh": /^usage: mlx-serve completions bash\|zsh\|fish$/,
    completions: /^usage: /,
    "serve --max-bach-size 8": /^--max-bach-size: .* did you mean --max-batch-size\?$/,
    "--port 99999": /^--port: expected /,
  };
  for (const [line, message] of Object.entries(lines)) {
    const { stdout, stderr, exitCode } = run(...line.split(" "));
    expect([stdout, exitCode]).toEqual(["", 2]);
    expect(stderr).toEndWith("\n");
    expect(stderr.slice(0, -1).replace(/^mlx-serve: /, "")).toMatch(message);
  }
}, 30_000);

test("what fails ends with 1", () => {
  const { stderr, exitCode } = run("show", "./absent");
  expect(stderr).toBe("mlx-serve: ./absent: no such file or folder\n");
  expect(exitCode).toBe(1);
});

test("what is interrupted ends by the signal, which a shell calls 130", async () => {
  const asked = Promise.withResolvers<void>();
  using hub = Bun.serve({
    port: 0,
    fetch: () => {
      asked.resolve();
      return new Promise<Response>(() => {});
    },
  });
  const child = Bun.spawn([process.execPath, main, "pull", "org/tiny"], {
    env: { ...env, HF_ENDPOINT: hub.url.origin },
    stderr: "ignore",
  });
  await asked.promise;
  child.kill("SIGINT");
  await child.exited;
  expect(child.signalCode).toBe("SIGINT");
});

test("no verb is the default one, and its flags need none", () => {
  expect(defaultVerb).toBe("serve");
  const { stderr, exitCode } = run();
  // There is no model in this folder.
  expect(stderr).toContain("the default model is missing");
  expect(exitCode).toBe(1);
  expect(run("--version").stdout).toBe(run("version").stdout);
});

test("the table has every flag that the verbs read", () => {
  for (const { name, flags = [] } of verbs) {
    const files = [...new Glob(`**/${name}.ts`).scanSync(join(root, "src/cli"))];
    expect([name, files.length]).toEqual([name, 1]);
    const file = join(root, "src/cli", files[0]!);
    const read = readFileSync(file, "utf8").matchAll(
      /"?([\w-]+)"?: \{ type: "(?:string|boolean)"/g,
    );
    const taken = settingList.filter(({ key }) => name === "run" && runSettings.has(key));
    for (const { flag, aliases } of taken) {
      expect(flags.find((each) => each.flag === flag)?.aliases).toEqual(aliases);
    }
    const names = new Set([
      ...Array.from(read, ([, option]) => `--${option}`),
      ...taken.map(({ flag }) => flag),
    ]);
    expect([name, new Set(flags.map(({ flag }) => flag))]).toEqual([name, names]);
  }
});
