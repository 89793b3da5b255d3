import { beforeEach, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import {
  fullName,
  popularModels,
  popularModelsDate,
  unknownModel,
} from "../../src/hub/popular-models.ts";
import { resolveModel } from "../../src/hub/source.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const root = temporaryFolder();

let env: Record<string, string>;
beforeEach(() => {
  env = { HOME: mkdtempSync(join(root, "home-")) };
});

function writeOwn(text: string): string {
  const path = join(env.HOME!, ".config", "mlx-serve", "models.json");
  mkdirSync(join(path, ".."), { recursive: true });
  writeFileSync(path, text);
  return path;
}

test("the table has each name and repo once, by size, and a date", () => {
  const models = popularModels(env);
  expect(models.length).toBeGreaterThan(20);
  for (const field of ["name", "repo"] as const) {
    expect(new Set(models.map((model) => model[field])).size).toBe(models.length);
  }
  const sizes = models.map(({ bytes }) => bytes!);
  expect(sizes).toEqual(sizes.toSorted((a, b) => b - a));
  expect(models.every(({ context }) => context! >= 8192)).toBe(true);
  expect(popularModelsDate).toMatch(/^20\d\d-\d\d-\d\d$/);
});

test("a short name is its repo in any case, and other names are what they were", () => {
  const repo = "mlx-community/Qwen3-4B-Instruct-2507-4bit";
  expect(fullName("qwen3:4b", env)).toBe(repo);
  expect(fullName("Qwen3:4B", env)).toBe(repo);
  for (const name of ["org/qwen3:4b", "qwen3:5b", "default", repo]) {
    expect(fullName(name, env)).toBe(name);
  }
});

test("a model is found in the cache by its short name, under the name of its repo", () => {
  const folder = join(env.HOME!, ".cache/huggingface/hub/models--mlx-community--Qwen3-0.6B-4bit");
  const commit = "a".repeat(40);
  mkdirSync(join(folder, "refs"), { recursive: true });
  mkdirSync(join(folder, "snapshots", commit), { recursive: true });
  writeFileSync(join(folder, "refs", "main"), commit);
  writeFileSync(join(folder, "snapshots", commit, "config.json"), "{}");
  for (const allowPaths of [true, false]) {
    expect(resolveModel("qwen3:0.6b", { env, allowPaths })).toEqual({
      kind: "folder",
      path: join(folder, "snapshots", commit),
      name: "mlx-community/Qwen3-0.6B-4bit",
    });
  }
  expect(() => resolveModel("qwen3:8b", { env })).toThrow(
    "`mlx-serve pull mlx-community/Qwen3-8B-4bit` downloads it",
  );
  expect(unknownModel("mlx-community/Qwen3-0.6B-4bti", env).message).toEndWith(
    "did you mean mlx-community/Qwen3-0.6B-4bit?",
  );
});

test("a name that no model has comes with the nearest one, or with all of its family", () => {
  const message = (name: string) => unknownModel(name, env).message;
  expect(message("qwen3-4b")).toBe('no model is named "qwen3-4b"; did you mean qwen3:4b?');
  expect(message("gemma2")).toBe('no model is named "gemma2"; did you mean gemma2:9b, gemma2:2b?');
  expect(message("defualt")).toEndWith("; did you mean default?");
  expect(message("something-else")).toBe(
    'no model is named "something-else": `mlx-serve ls` and `mlx-serve models` list names',
  );
  // Over HTTP nothing is told of what is here.
  expect(() => resolveModel("qwen3-4b", { env, allowPaths: false })).toThrow(
    /^no model is named "qwen3-4b"$/,
  );
});

test("a file of the user adds names and gives them another meaning", () => {
  writeOwn(
    JSON.stringify({
      models: [
        { name: "qwen3:4b", repo: "org/own-qwen:Q4_K_M", bytes: 2e9 },
        { name: "mine", repo: "org/mine" },
      ],
    }),
  );
  expect(fullName("qwen3:4b", env)).toBe("org/own-qwen:Q4_K_M");
  expect(fullName("mine", env)).toBe("org/mine");
  expect(fullName("qwen3:8b", env)).toBe("mlx-community/Qwen3-8B-4bit");
  expect(popularModels(env).filter(({ name }) => name === "qwen3:4b")).toHaveLength(1);
});

test("a file that is wrong is refused by its path and field", () => {
  for (const [text, message] of [
    ["{", "not valid JSON"],
    ["[]", "expected object"],
    ['{"models":[{"name":"a b","repo":"org/x"}]}', "models: 0: name: expected a name like"],
    ['{"models":[{"name":"a","repo":"x"}]}', "models: 0: repo: expected a repo"],
    ['{"models":[{"name":"a","repo":"org/x","size":1}]}', "size"],
  ] as const) {
    const path = writeOwn(text);
    expect(() => fullName("mine", env)).toThrow(`${path}: `);
    expect(() => fullName("mine", env)).toThrow(message);
  }
});
