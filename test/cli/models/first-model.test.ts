// The first start, on a terminal: models that fit are offered, and the one that is chosen is pulled and served.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import type { Key } from "node:readline";
import { engineSetup } from "../../../ffi/native.ts";
import { fitting, offered, suggested } from "../../../src/cli/models/first-model.ts";
import { moveOf } from "../../../src/cli/terminal/choice.ts";
import { EngineClient } from "../../../src/engine/client.ts";
import { parseRepoName } from "../../../src/hub/repo-name.ts";
import { LoopbackHub } from "../../hub/loopback-hub.ts";
import { json } from "../../hub/small-models.ts";
import { type Home, makeHome, mlxServe } from "../../support/serve-process.ts";
import { ENTER, ESCAPE, onTerminal, type Terminal, UP } from "../../support/terminal.ts";

const models = offered({});
/** The last of the list; every machine that runs these tests has memory for it. */
const SMALLEST = models.at(-1)!.repo;
const SECOND = models.at(-2)!.repo;

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

/** With a hub of its own. */
function start(args: string[], more: Record<string, string> = {}): Terminal {
  return onTerminal(args, {
    ...home.env,
    HF_ENDPOINT: hub.url,
    HF_HUB_CACHE: join(home.env.HOME!, "hub"),
    // The tests of `show` count what is left in the one that all share.
    TMPDIR: home.env.HOME!,
    ...more,
  });
}

test("offers what fits, pulls what is chosen with a progress bar, and serves it", async () => {
  // Once for what `show` reads of it, once for the pull.
  const slowly = { kind: "trickle", pieces: 8, everyMs: 150 } as const;
  hub.faults.set("model.safetensors", [slowly, slowly]);
  const first = start(["--port", "0"]);
  const [, room] = await first.sees(
    /No model was given. There are ([\d.]+) GB of memory for models on /,
  );
  // What a load would have now: other programs come and go.
  const engine = await EngineClient.start(engineSetup());
  const { memoryLimitBytes } = await engine.plan(home.model);
  await engine.stop();
  expect((Number(room) * 1e9) / memoryLimitBytes).toBeWithin(0.7, 1.3);
  // One above the first is the last.
  await first.sees(new RegExp(`  \\d+\\. ${SMALLEST} +340 MB to download\r\n`));
  const { repo } = models.at(-3)!;
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
  const second = start(["--port", "0"], { HF_HUB_OFFLINE: "1" });
  await second.sees(new RegExp(`> 1\\. ${SMALLEST} .*, on this machine\r\n`));
  second.type(ENTER);
  await second.sees(/address +http/);
  second.kill();
  expect(await second.ended).toBe(0);
}, 60_000);

test("what does not load is said before it is downloaded, and another one can be chosen", async () => {
  const env = { HF_HUB_CACHE: join(home.env.HOME!, "hub-2") };
  const offer = start(["--port", "0"], env);
  await offer.sees(new RegExp(`${SMALLEST}.*\r\n`));
  offer.type(`1${UP}${UP}`);
  await offer.sees(new RegExp(`> \\d+\\. ${SECOND} `));
  offer.type(ENTER);
  await offer.sees(new RegExp(`${SECOND} cannot be loaded here: .*unheard-of`));
  await offer.sees(new RegExp(`${SMALLEST}.*\r\n`));
  offer.type(ESCAPE);
  await offer.sees(/mlx-serve: the default model is missing/);
  expect(await offer.ended).toBe(1);
  expect(readdirSync(home.env.HOME!)).not.toContain("hub-2");
}, 30_000);

test("a short name of what is not here is pulled, if the user agrees", async () => {
  const env = { HF_HUB_CACHE: join(home.env.HOME!, "hub-3") };
  const refused = start(["serve", "qwen3:0.6b", "--port", "0"], env);
  await refused.sees(
    /mlx-community\/Qwen3-0\.6B-4bit is not on this machine: 340 MB to download\. Pull it\?/,
  );
  refused.type(`n${ENTER}`);
  await refused.sees(/Qwen3-0\.6B-4bit is not in the cache .*: `mlx-serve pull/);
  expect(await refused.ended).toBe(1);

  const agreed = start(["run", "--local", "qwen3:0.6b", "Hi", "--max-tokens", "2"], env);
  await agreed.sees(/Pull it\?/);
  agreed.type(`y${ENTER}`);
  await agreed.sees(/\[#{24}\] +100%/);
  await agreed.sees(/2 tokens, /);
  expect(await agreed.ended).toBe(0);
}, 60_000);

test("without a terminal, and where a model is named, there is the error and no question", async () => {
  const { stdout, stderr, exitCode } = await mlxServe(["--port", "0"], home.env);
  expect(stderr).toMatch(/^mlx-serve: the default model is missing: [^\n]*\n$/);
  expect([stdout, exitCode]).toEqual(["", 1]);
  const named = start(["serve", "default", "--port", "0"]);
  const [shown] = await named.sees(/^[\s\S]*mlx-serve: the default model is missing/);
  expect(shown).not.toContain("Serve one of these?");
  expect(await named.ended).toBe(1);
}, 30_000);

test("the models are repos in order of their size, and what fits leaves room for KV", () => {
  const sizes = models.map(({ bytes }) => bytes);
  expect(sizes).toEqual(sizes.toSorted((a, b) => b - a));
  for (const { repo } of models) expect(parseRepoName(repo)).toEqual({ id: repo });
  const names = (limit: number) => fitting(models, limit).map(({ repo }) => repo);
  // What MLX may use on Macs of 8, 16 and 64 GB.
  expect(names(5.7e9)[0]).toBe("mlx-community/Qwen3-4B-Instruct-2507-4bit");
  expect(names(11.8e9)[0]).toBe("mlx-community/Qwen3-14B-4bit");
  expect(names(51.5e9)[0]).toBe("mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit");
  expect(names(1e9)).toEqual([]);
});

test("the suggestion is what is here, or the largest that is not too large", () => {
  const name = (limit: number, here: readonly string[] = []) => {
    const own = here.map((repo) => ({ repo, bytes: 1e9, isHere: true }));
    const candidates = fitting([...own, ...models], limit);
    return candidates[suggested(candidates, limit / 2)]!;
  };
  expect(name(5.7e9).repo).toBe("mlx-community/Qwen3-4B-Instruct-2507-4bit");
  expect(name(11.8e9).repo).toBe("mlx-community/Qwen3-8B-4bit");
  expect(name(51.5e9).repo).toBe("mlx-community/Qwen3-30B-A3B-Instruct-2507-4bit");
  expect(name(51.5e9, ["org/own"])).toEqual({ repo: "org/own", bytes: 1e9, isHere: true });
  const again = "mlx-community/Qwen3-8B-4bit";
  expect(
    fitting([{ repo: again, bytes: 5e9, isHere: true }, ...models], 20e9).filter(
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
  const control = { ctrl: true };
  for (const left of [key("escape"), key("q"), key("c", control), key("d", control)]) {
    expect(left).toEqual({ kind: "left" });
  }
});
