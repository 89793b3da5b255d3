// What the documentation mentions is there, under that name.
import { describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import packageJson from "../../package.json" with { type: "json" };
import { refreshed } from "../../scripts/docs.ts";
import { verbs } from "../../src/cli/verbs.ts";
import { loadSettings } from "../../src/config/load.ts";
import { flagsOf, settingList } from "../../src/config/settings.ts";
import { otherVariables } from "../../src/config/variables.ts";
import { readDocuments, root } from "./documents.ts";

const documents = readDocuments();

/** Of other programs, and of scripts. */
const otherFlags = {
  biome: ["--write"],
  "bun test": ["--timeout"],
  "npm run bench:compare": ["--rounds"],
  "npm run build": ["--target"],
  "npm run soak": ["--minutes"],
  "scripts/bench-gpu.ts": ["--new", "--python", "--prefill-gap", "--scaling", "--http"],
  "scripts/random-model.ts": ["--bits"],
  systemctl: ["--now"],
};

const flags = new Set([
  "--help",
  ...Object.values(otherFlags).flat(),
  ...settingList.flatMap((setting) => flagsOf(setting).map(({ flag }) => flag)),
  ...verbs
    .flatMap(({ flags: own }) => (own === "settings" ? [] : (own ?? [])))
    .map((each) => each.flag),
]);

const variables = new Set([
  ...settingList.flatMap(({ variable, variables: more = [] }) => [variable, ...more]),
  ...Object.keys(otherVariables),
]);

const folders = readdirSync(join(root, "src")).join("|");

/** What is found in a text, each once, without what is there. */
function missing(text: string, pattern: RegExp, isThere: (name: string) => boolean): string[] {
  const name = ([whole, ...parts]: RegExpExecArray) => parts.find(Boolean) ?? whole;
  const found = new Set(Array.from(text.matchAll(pattern), name));
  return [...found].filter((name) => !isThere(name));
}

describe.each(documents)("$path", ({ path, text, blocks, code, links }) => {
  const commands = [
    ...code,
    ...blocks.filter(({ info }) => info === "sh").map((each) => each.text),
  ];
  const literal = [...code, ...blocks.map((block) => block.text)].join("\n");

  test("has its parts as the program would write them now", async () => {
    expect(await refreshed(text)).toBe(text);
  });

  test("links to what is there", () => {
    const here = links.filter((link) => !/^https?:/.test(link));
    const target = (link: string) => join(root, dirname(path), link.replace(/#.*/, ""));
    expect(here.filter((link) => !existsSync(target(link)))).toEqual([]);
  });

  test("names files that are there", () => {
    const isThere = (name: string) => existsSync(join(root, name));
    expect(missing(literal, /\b(?:src|ffi|test|scripts)\/[\w/-]*(?:\.\w+)*/g, isThere)).toEqual([]);
    // Pictures leave out src/ and the ending.
    const pictures = blocks.filter(({ info }) => info === "text").map((block) => block.text);
    const isModule = (name: string) => isThere(join("src", `${name}.ts`));
    const modules = new RegExp(`(?<![\\w/])(?:${folders})/[a-z-]+`, "g");
    expect(missing(pictures.join("\n"), modules, isModule)).toEqual([]);
  });

  test("names flags, variables and verbs that are there", () => {
    expect(missing(literal, /(?<![\w-])--[a-z][\w-]*/g, (flag) => flags.has(flag))).toEqual([]);
    expect(missing(literal, /MLX_SERVE_[A-Z_]+/g, (name) => variables.has(name))).toEqual([]);
    const isVerb = (word: string) => verbs.some(({ name }) => name === word);
    expect(missing(commands.join("\n"), /^mlx-serve (?:-- )?([a-z]+)/gm, isVerb)).toEqual([]);
    expect(missing(commands.join("\n"), /npm run -s mlx-serve -- ([a-z]+)/g, isVerb)).toEqual([]);
  });

  test("names npm's scripts that are there", () => {
    const isScript = (name: string) => name in packageJson.scripts;
    expect(missing(commands.join("\n"), /npm run (?:-s )?([\w:-]+)/g, isScript)).toEqual([]);
  });

  test("names metrics that are there", () => {
    const table = documents.find((each) => each.path === "docs/operations.md")!.text;
    const isMetric = (name: string) => table.includes(`| \`${name}\` |`);
    expect(missing(literal, /\bmlx_serve_\w+/g, isMetric)).toEqual([]);
  });

  test("shows files of settings that can be read", () => {
    for (const block of blocks.filter(({ info }) => info === "toml")) {
      const folder = mkdtempSync(join(tmpdir(), "mlx-serve-docs-"));
      const file = join(folder, "config.toml");
      writeFileSync(file, block.text);
      expect(loadSettings(["--config", file], {}).sources.config).toBe("--config");
      rmSync(folder, { recursive: true });
    }
  });
});

test("flags of other programs are those that documents mention", () => {
  const all = documents.map(({ text }) => text).join("\n");
  const listed = Object.values(otherFlags).flat();
  expect(listed.filter((flag) => !all.includes(flag))).toEqual([]);
});

test("exit codes are those that the help tells", async () => {
  const help = Bun.spawnSync([
    process.execPath,
    join(root, "src/main.ts"),
    "help",
  ]).stdout.toString();
  const [, told = ""] = /^Exit codes\n([\s\S]*?)\n\n/m.exec(help)!;
  const rows = told.split("\n").map((line) => /^ +(\d+) +(.*)$/.exec(line)!.slice(1).join(" | "));
  expect(rows.length).toBeGreaterThan(2);
  const table = readFileSync(join(root, "docs/configuration.md"), "utf8");
  for (const row of rows) expect(table).toContain(`| ${row} |`);
});

test("codes of errors are the program's, and are all there", () => {
  const api = documents.find(({ path }) => path === "docs/api.md")!.text;
  const rows = api.split("\n").filter((line) => /^\| \d{3}/.test(line));
  const table = rows.map((row) => row.split("|")[2]!).join();
  const source = (folder: string) =>
    readdirSync(join(root, folder))
      .map((name) => readFileSync(join(root, folder, name), "utf8"))
      .join("\n");
  const [http, wire] = [source("src/http"), source("src/api")];
  const isThere = (code: string) => `${http}${wire}`.includes(`"${code}"`);
  expect(missing(table, /`(\w+)`/g, isThere)).toEqual([]);
  const isTold = (code: string) => table.includes(`\`${code}\``);
  expect(missing(http, /\bcode: "(\w+)"|, "([a-z]+_[a-z_]+)"\)/g, isTold)).toEqual([]);
});
