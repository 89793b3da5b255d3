import { afterAll, beforeEach, expect, spyOn, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { rm } from "../../src/cli/rm.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const log = spyOn(console, "log").mockImplementation(() => {});
const root = temporaryFolder();
afterAll(() => log.mockRestore());
const [A, B] = ["a".repeat(40), "b".repeat(40)];

let cache: string;
let env: Record<string, string>;
beforeEach(() => {
  cache = mkdtempSync(join(root, "hub-"));
  env = { HF_HUB_CACHE: cache };
  for (const commit of [A, B]) {
    mkdirSync(repo("snapshots", commit), { recursive: true });
    writeFileSync(repo("snapshots", commit, "config.json"), "{}");
  }
  log.mockClear();
});

const repo = (...path: string[]) => join(cache, "models--org--tiny", ...path);

test("rm removes a revision, then the repo", async () => {
  await rm([`org/tiny@${A}`, "--yes"], env);
  expect([A, B].map((commit) => existsSync(repo("snapshots", commit)))).toEqual([false, true]);
  await rm(["org/tiny", "-y"], env);
  expect(existsSync(repo())).toBe(false);
  expect(log.mock.calls.at(-1)).toEqual(["removed org/tiny: 2 B freed"]);
});

test("rm refuses paths, names it does not have, and flags it does not know", async () => {
  for (const [args, message] of [
    [["./models", "--yes"], "rm takes no paths"],
    [[cache, "--yes"], "rm takes no paths"],
    [["../../x", "--yes"], "rm takes no paths"],
    [["org/tiny:Q4_0", "--yes"], "rm takes no paths"],
    [["org/absent", "--yes"], "org/absent is not in the cache"],
    [["org/tiny", "--frobnicate"], "--frobnicate"],
    [["org/tiny", "org/more"], "usage: mlx-serve rm"],
    [[], "usage: mlx-serve rm"],
  ] as const) {
    await expect(rm([...args], env)).rejects.toThrow(message);
  }
  expect(existsSync(repo("snapshots", B))).toBe(true);
});

const script = `import { rm } from "${join(import.meta.dir, "../../src/cli/rm.ts")}";
  await rm(["org/tiny"]).catch((error) => console.error(error.message));`;
const command = [process.execPath, "-e", script];

test("rm without a terminal asks for --yes", () => {
  const { stderr } = Bun.spawnSync(command, { env, stdin: "ignore" });
  expect(stderr.toString()).toBe("rm asks on a terminal only: add --yes to remove org/tiny\n");
  expect(existsSync(repo())).toBe(true);
});

test("rm on a terminal asks, and takes only yes for yes", async () => {
  for (const [answer, isThere] of [
    ["\n", true],
    ["n\n", true],
    ["y\n", false],
  ] as const) {
    let shown = "";
    const asked = Promise.withResolvers<void>();
    const child = Bun.spawn(command, {
      env,
      terminal: {
        data(_, bytes) {
          shown += Buffer.from(bytes).toString();
          if (shown.includes("[y/N]")) asked.resolve();
        },
      },
    });
    await asked.promise;
    expect(shown).toContain("remove org/tiny (of 4 B in the cache)?");
    child.terminal!.write(answer);
    await child.exited;
    child.terminal!.close();
    expect(existsSync(repo())).toBe(isThere);
  }
});
