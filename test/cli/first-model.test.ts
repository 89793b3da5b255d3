// The first start, on a terminal: models that fit are offered, and the one that is chosen is pulled and served.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import type { Key } from "node:readline";
import { moveOf } from "../../src/cli/choice.ts";
import { fitting, modelMemory, suggested } from "../../src/cli/first-model.ts";
import { parseRepoName } from "../../src/hub/repo-name.ts";
import { wellKnownModels } from "../../src/hub/well-known.ts";
import { LoopbackHub } from "../hub/loopback-hub.ts";
import { json } from "../hub/small-models.ts";
import { type Home, makeHome, mlxServe } from "../support/serve-process.ts";

const main = join(import.meta.dir, "../../src/main.ts");
const [ENTER, ESCAPE, UP] = ["\r", "\x1b", "\x1b[A"];
/** The last of the list; every machine that runs these tests has memory for it. */
const SMALLEST = wellKnownModels.at(-1)!.repo;
const SECOND = wellKnownModels.at(-2)!.repo;

let home: Home;
let hub: LoopbackHub;
beforeAll(async () => {
  home = makeHome();
  hub = await LoopbackHub.start();
  const files = readdirSync(home.model).map((name) => {
    const path = join(home.model, name);
    return [name, { content: readFileSync(path), big: statSync(path).size > 50_000 }] as const;
  });
  hub.add(SMALLEST, { files: Object.fromEntries(files) });
  // What no memory is enough for.
  const config = { ...JSON.parse(readFileSync(join(home.model, "config.json"), "utf8")) };
  const broken = {
    ...Object.fromEntries(files),
    "config.json": { content: json({ ...config, model_type: "unheard-of" }) },
  };
  hub.add(SECOND, { files: broken });
});
afterAll(async () => {
  await hub.stop();
  home.remove();
});

/** The command on a terminal of its own. */
function onTerminal(args: string[], more: Record<string, string> = {}) {
  let screen = "";
  let waiting: { pattern: RegExp; resolve: (found: RegExpExecArray) => void } | undefined;
  const look = () => {
    const found = waiting?.pattern.exec(screen);
    if (found) waiting?.resolve(found);
  };
  const child = Bun.spawn([process.execPath, main, ...args], {
    env: {
      ...home.env,
      HF_ENDPOINT: hub.url,
      HF_HUB_CACHE: join(home.env.HOME!, "hub"),
      // The tests of `show` count what is left in the one that all share.
      TMPDIR: home.env.HOME!,
      ...more,
    },
    terminal: {
      cols: 100,
      rows: 40,
      data: (_, bytes) => {
        screen += Buffer.from(bytes).toString();
        look();
      },
    },
  });
  return {
    /** Waits until it is on the screen, behind what was seen before. */
    async sees(pattern: RegExp): Promise<RegExpExecArray> {
      const found = await new Promise<RegExpExecArray>((resolve, reject) => {
        waiting = { pattern, resolve };
        look();
        void child.exited.then(async () => {
          // What it wrote last may still be on its way.
          await Bun.sleep(500);
          reject(new Error(`it ended before ${pattern}:\n${screen}`));
        });
      });
      screen = screen.slice(found.index + found[0].length);
      return found;
    },
    type: (keys: string) => child.terminal!.write(keys),
    kill: () => child.kill("SIGTERM"),
    ended: child.exited,
  };
}

test("offers what fits, pulls what is chosen with a progress bar, and serves it", async () => {
  // Once for what `show` reads of it, once for the pull.
  const slowly = { kind: "trickle", pieces: 8, everyMs: 150 } as const;
  hub.faults.set("model.safetensors", [slowly, slowly]);
  const first = onTerminal(["--port", "0"]);
  await first.sees(/No model is named, and there are [\d.]+ GB of memory for models on /);
  // One above the first is the last.
  await first.sees(new RegExp(`  \\d+\\. ${SMALLEST} +340 MB to download\r\n`));
  const { repo } = wellKnownModels.at(-3)!;
  first.type("1");
  await first.sees(new RegExp(`> 1\\. mlx-community/\\S+ .*\r\n[^>]*${repo}`));
  first.type(UP);
  await first.sees(new RegExp(`> \\d+\\. ${SMALLEST} `));
  first.type(ENTER);
  await first.sees(/mlx-community\S+ at [0-9a-f]{8}: \d+ files, /);
  await first.sees(/\[#+-+\] +[1-9]\d?% .* of .*\/s/);
  await first.sees(/\[#{24}\] +100%/);
  await first.sees(new RegExp(`next time: mlx-serve serve ${SMALLEST}\r\n`));
  const [, url] = await first.sees(/address +(http:\/\/\S+)\/v1/);
  const answer = await fetch(`${url}/v1/models`);
  expect(await answer.json()).toMatchObject({ data: [{ id: SMALLEST }] });
  first.kill();
  expect(await first.ended).toBe(0);

  // The second time it is here, and is what Enter takes, without a network too.
  const second = onTerminal(["--port", "0"], { HF_HUB_OFFLINE: "1" });
  await second.sees(new RegExp(`> 1\\. ${SMALLEST} .*, here\r\n`));
  second.type(ENTER);
  await second.sees(/address +http/);
  second.kill();
  expect(await second.ended).toBe(0);
}, 60_000);

test("what does not load is said before it is downloaded, and another one can be chosen", async () => {
  const env = { HF_HUB_CACHE: join(home.env.HOME!, "hub-2") };
  const start = onTerminal(["--port", "0"], env);
  await start.sees(new RegExp(`${SMALLEST}.*\r\n`));
  start.type(`1${UP}${UP}`);
  await start.sees(new RegExp(`> \\d+\\. ${SECOND} `));
  start.type(ENTER);
  await start.sees(new RegExp(`${SECOND} does not load here: .*unheard-of`));
  await start.sees(new RegExp(`${SMALLEST}.*\r\n`));
  start.type(ESCAPE);
  await start.sees(/mlx-serve: the default model is missing/);
  expect(await start.ended).toBe(1);
  expect(readdirSync(home.env.HOME!)).not.toContain("hub-2");
}, 30_000);

test("without a terminal, and where a model is named, there is the error and no question", async () => {
  const { stdout, stderr, exitCode } = await mlxServe(["--port", "0"], home.env);
  expect(stderr).toMatch(/^mlx-serve: the default model is missing: [^\n]*\n$/);
  expect([stdout, exitCode]).toEqual(["", 1]);
  const named = onTerminal(["serve", "default", "--port", "0"]);
  const [shown] = await named.sees(/^[\s\S]*mlx-serve: the default model is missing/);
  expect(shown).not.toContain("Serve one of these?");
  expect(await named.ended).toBe(1);
}, 30_000);

test("the models are repos in order of their size, and what fits leaves room for KV", () => {
  const sizes = wellKnownModels.map(({ bytes }) => bytes);
  expect(sizes).toEqual(sizes.toSorted((a, b) => b - a));
  for (const { repo } of wellKnownModels) expect(parseRepoName(repo)).toEqual({ id: repo });
  const names = (limit: number) => fitting(wellKnownModels, limit).map(({ repo }) => repo);
  // What MLX may use on Macs of 8, 16 and 64 GB.
  expect(names(5.7e9)[0]).toBe("mlx-community/Qwen3-4B-Instruct-2507-4bit");
  expect(names(11.8e9)[0]).toBe("mlx-community/Qwen3-14B-4bit");
  expect(names(51.5e9)[0]).toBe("mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit");
  expect(names(1e9)).toEqual([]);
});

test("a Mac's memory is what its GPU can use well", () => {
  const device = { max_recommended_working_set_size: 5.7e9 };
  expect(modelMemory({ memoryLimitBytes: 8e9, device })).toBe(5.7e9);
  expect(modelMemory({ memoryLimitBytes: 8e9, device: {} })).toBe(8e9);
});

test("the suggestion is what is here, or the largest that is not too large", () => {
  const name = (limit: number, here: readonly string[] = []) => {
    const own = here.map((repo) => ({ repo, bytes: 1e9, isHere: true }));
    const candidates = fitting([...own, ...wellKnownModels], limit);
    return candidates[suggested(candidates, limit / 2)]!;
  };
  expect(name(5.7e9).repo).toBe("mlx-community/Qwen3-4B-Instruct-2507-4bit");
  expect(name(11.8e9).repo).toBe("mlx-community/Qwen3-8B-4bit");
  expect(name(51.5e9).repo).toBe("mlx-community/Qwen3-30B-A3B-Instruct-2507-4bit");
  expect(name(51.5e9, ["org/own"])).toEqual({ repo: "org/own", bytes: 1e9, isHere: true });
  const again = "mlx-community/Qwen3-8B-4bit";
  expect(
    fitting([{ repo: again, bytes: 5e9, isHere: true }, ...wellKnownModels], 20e9).filter(
      ({ repo }) => repo === again,
    ),
  ).toEqual([{ repo: again, bytes: 5e9, isHere: true }]);
});

test("keys move, take and leave", () => {
  const key = (name: string, more: Partial<Key> = {}) => moveOf({ name, ...more }, 1, 3);
  expect(key("up")).toEqual({ kind: "at", index: 0 });
  expect(key("down")).toEqual({ kind: "at", index: 2 });
  expect(moveOf({ name: "down" }, 2, 3)).toEqual({ kind: "at", index: 0 });
  expect(key("return")).toEqual({ kind: "taken", index: 1 });
  expect(key("3", { sequence: "3" })).toEqual({ kind: "at", index: 2 });
  expect(key("4", { sequence: "4" })).toEqual({ kind: "at", index: 1 });
  expect(key("x", { sequence: "x" })).toEqual({ kind: "at", index: 1 });
  for (const left of [
    key("escape"),
    key("q"),
    key("c", { ctrl: true }),
    key("d", { ctrl: true }),
  ]) {
    expect(left).toEqual({ kind: "left" });
  }
});
