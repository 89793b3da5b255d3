// Every name that the documentation mentions exists.
import { describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { Glob } from "bun";
import packageJson from "../../package.json" with { type: "json" };
import { refreshed } from "../../scripts/docs.ts";
import { verbs } from "../../src/cli/verbs.ts";
import { loadSettings } from "../../src/config/load.ts";
import { flagsOf, settingList } from "../../src/config/settings.ts";
import { otherVariables } from "../../src/config/variables.ts";
import { readDocuments, root } from "./documents.ts";

const documents = readDocuments();

/** Flags of other programs and of scripts. */
const otherFlags = {
  biome: ["--write"],
  "bun test": ["--timeout"],
  "npm run attack": ["--short"],
  "npm run bench:compare": ["--rounds"],
  "npm run bench:gpu-peers": ["--from", "--models", "--loads", "--rounds"],
  "npm run bench:engine": ["--no-peer", "--tokens"],
  "npm run bench:console": ["--tiny", "--seconds", "--browser"],
  "npm run build": ["--target"],
  "npm run comments": ["--count", "--seed"],
  "npm run order": ["--seeds", "--first", "--model", "--feature"],
  "npm run soak": ["--minutes"],
  "scripts/bench/gpu.ts": ["--peers", "--new", "--python", "--prefill-gap", "--scaling", "--http"],
  "scripts/bench/products.ts": ["--rows"],
  "scripts/bench/random-model.ts": ["--bits"],
  systemctl: ["--now"],
};

const flags = new Set([
  "--help",
  ...Object.values(otherFlags).flat(),
  ...settingList.flatMap((setting) => flagsOf(setting).map(({ flag }) => flag)),
  ...verbs.flatMap(({ flags: own = [] }) => own).map((each) => each.flag),
]);

const variables = new Set([
  ...settingList.flatMap(({ variable, variables: more = [] }) => [variable, ...more]),
  ...Object.keys(otherVariables),
]);

const folders = readdirSync(join(root, "src")).join("|");

/** The names in a text that do not exist, each once. */
function missing(text: string, pattern: RegExp, exists: (name: string) => boolean): string[] {
  const name = ([whole, ...parts]: RegExpExecArray) => parts.find(Boolean) ?? whole;
  const found = new Set(Array.from(text.matchAll(pattern), name));
  return [...found].filter((name) => !exists(name));
}

describe.each(documents)("$path", ({ path, text, blocks, code, links }) => {
  const commands = [
    ...code,
    ...blocks.filter(({ info }) => info === "sh").map((each) => each.text),
  ];
  const literal = [...code, ...blocks.map((block) => block.text)].join("\n");

  test("has generated parts that are up to date", async () => {
    expect(await refreshed(text)).toBe(text);
  });

  test("has links that lead to files", () => {
    const here = links.filter((link) => !/^https?:/.test(link));
    const target = (link: string) => join(root, dirname(path), link.replace(/#.*/, ""));
    expect(here.filter((link) => !existsSync(target(link)))).toEqual([]);
  });

  test("has links that lead to sections", () => {
    const leads = (link: string) => {
      const [file, name] = link.split("#") as [string, string];
      const to = file === "" ? path : join(dirname(path), file);
      return documents
        .find((each) => each.path === to)
        ?.sections.some((each) => each.name === name);
    };
    const within = links.filter((link) => /^[^:]*#/.test(link));
    expect(within.filter((link) => !leads(link))).toEqual([]);
  });

  test("names files that exist", () => {
    const exists = (name: string) => existsSync(join(root, name));
    expect(
      missing(literal, /\b(?:src|ffi|test|scripts|examples)\/[\w/-]*(?:\.\w+)*/g, exists),
    ).toEqual([]);
    // Pictures leave out src/ and the extension.
    const pictures = blocks.filter(({ info }) => info === "text").map((block) => block.text);
    const isModule = (name: string) => exists(join("src", `${name}.ts`));
    const modules = new RegExp(`(?<![\\w/])(?:${folders})(?:/[a-z-]+)+`, "g");
    expect(missing(pictures.join("\n"), modules, isModule)).toEqual([]);
  });

  test("names flags, variables and verbs that exist", () => {
    expect(missing(literal, /(?<![\w-])--[a-z][\w-]*/g, (flag) => flags.has(flag))).toEqual([]);
    expect(missing(literal, /MLX_SERVE_[A-Z_]+/g, (name) => variables.has(name))).toEqual([]);
    const isVerb = (word: string) => verbs.some(({ name }) => name === word);
    expect(missing(commands.join("\n"), /^mlx-serve (?:-- )?([a-z]+)/gm, isVerb)).toEqual([]);
    expect(missing(commands.join("\n"), /npm run -s mlx-serve -- ([a-z]+)/g, isVerb)).toEqual([]);
  });

  test("names npm scripts that exist", () => {
    const isScript = (name: string) => name in packageJson.scripts;
    expect(missing(commands.join("\n"), /npm run (?:-s )?([\w:-]+)/g, isScript)).toEqual([]);
  });

  test("names metrics that exist", () => {
    const table = documents.find((each) => each.path === "docs/operations.md")!.text;
    const isMetric = (name: string) => table.includes(`| \`${name}\` |`);
    expect(missing(literal, /\bmlx_serve_\w+/g, isMetric)).toEqual([]);
  });

  test("shows settings files that can be read", () => {
    for (const block of blocks.filter(({ info }) => info === "toml")) {
      const folder = mkdtempSync(join(tmpdir(), "mlx-serve-docs-"));
      const file = join(folder, "config.toml");
      writeFileSync(file, block.text);
      expect(loadSettings(["--config", file], {}).sources.config).toBe("--config");
      rmSync(folder, { recursive: true });
    }
  });
});

test("the documents mention every listed flag of another program", () => {
  const all = documents.map(({ text }) => text).join("\n");
  const listed = Object.values(otherFlags).flat();
  expect(listed.filter((flag) => !all.includes(flag))).toEqual([]);
});

test("the exit codes are those of the help", async () => {
  const help = Bun.spawnSync([
    process.execPath,
    join(root, "src/main.ts"),
    "help",
  ]).stdout.toString();
  const [, listed = ""] = /^Exit codes\n([\s\S]*?)\n\n/m.exec(help)!;
  const rows = listed.split("\n").map((line) => /^ +(\d+) +(.*)$/.exec(line)!.slice(1).join(" | "));
  expect(rows.length).toBeGreaterThan(2);
  const table = readFileSync(join(root, "docs/configuration.md"), "utf8");
  for (const row of rows) expect(table).toContain(`| ${row} |`);
});

test("the error codes are the program's, and are complete", () => {
  const api = documents.find(({ path }) => path === "docs/api.md")!.text;
  const rows = api.split("\n").filter((line) => /^\| \d{3}/.test(line));
  const table = rows.map((row) => row.split("|")[2]!).join();
  const files = [...new Glob("src/**/*.ts").scanSync(root)].map((path) => ({
    path,
    text: readFileSync(join(root, path), "utf8"),
  }));
  const all = files.map(({ text }) => text).join("\n");
  const exists = (code: string) => all.includes(`"${code}"`);
  expect(missing(table, /`(\w+)`/g, exists)).toEqual([]);
  // Errors are answered in src/http, or carry their answer.
  const answers = files
    .filter(({ path, text }) => path.startsWith("src/http/") || text.includes("ErrorAnswer"))
    .map(({ text }) => text)
    .join("\n");
  const isListed = (code: string) => table.includes(`\`${code}\``);
  expect(missing(answers, /\bcode: "(\w+)"|, "([a-z]+_[a-z_]+)"\)/g, isListed)).toEqual([]);
});
