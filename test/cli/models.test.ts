import { afterAll, expect, spyOn, test } from "bun:test";
import { join } from "node:path";
import { models, popularRows } from "../../src/cli/models.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const log = spyOn(console, "log").mockImplementation(() => {});
const root = temporaryFolder();
const env = { ...process.env, HOME: root, XDG_CONFIG_HOME: root, HF_HUB_CACHE: join(root, "hub") };
afterAll(() => log.mockRestore());

test("models lists names with size, memory, context and whether they fit", async () => {
  await models([], env);
  const lines = String(log.mock.calls[0]![0]).split("\n");
  expect(lines[0]).toMatch(/^NAME +REPO +SIZE +MEMORY +CONTEXT +FITS$/);
  const line = lines.find((each) => each.startsWith("qwen3:4b "));
  expect(line).toMatch(
    /^qwen3:4b +mlx-community\/Qwen3-4B-Instruct-2507-4bit +2\.3 GB +3\.8 GB +262144 +(yes|no)$/,
  );
  expect(lines.at(-1)).toMatch(/^[\d.]+ GB free for models on .+; the list dates from 20\d\d-/);

  await models(["--json"], env);
  const { roomBytes, models: rows } = JSON.parse(String(log.mock.calls[1]![0]));
  expect(roomBytes).toBeGreaterThan(1e8);
  expect(rows).toEqual(JSON.parse(JSON.stringify(popularRows(roomBytes, env))));
  await expect(models(["what"], env)).rejects.toThrow("what");
});

test("what fits leaves room for a KV cache", () => {
  const fitting = (room: number) =>
    popularRows(room, env)
      .filter(({ fits }) => fits)
      .map(({ name }) => name);
  expect(fitting(2e9)).toEqual(["qwen3:0.6b", "smollm2:135m"]);
  expect(fitting(3.8e9)).toContain("qwen3:4b");
  expect(fitting(3.7e9)).not.toContain("qwen3:4b");
  expect(fitting(1e12)).toHaveLength(popularRows(0, env).length);
});
