import { afterAll, beforeAll, expect, test } from "bun:test";
import { chmodSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { agents } from "../../src/cli/agents.ts";
import { verbs } from "../../src/cli/verbs.ts";
import { knownServers } from "../../src/serve/server-file.ts";
import { type Home, makeHome, mlxServe, startMlxServe } from "../support/serve-process.ts";

/** Prints its variables and arguments as JSON, and ends with 7; waits before where it is told to. */
const standIn = `#!${process.execPath}
const { env } = process;
console.log(JSON.stringify({ env, args: process.argv.slice(2) }));
if (env.STAND_IN_WAITS) {
  process.on("SIGTERM", () => process.exit(9));
  console.error("waiting");
  setInterval(() => {}, 1000);
} else process.exit(7);
`;

let home: Home;
let env: Record<string, string>;
beforeAll(() => {
  home = makeHome();
  const bin = join(home.env.HOME!, "bin");
  mkdirSync(bin);
  for (const { name } of agents) {
    writeFileSync(join(bin, name), standIn);
    chmodSync(join(bin, name), 0o755);
  }
  env = { ...home.env, PATH: bin };
});
afterAll(() => home.remove());

async function startServe(...args: string[]) {
  const server = startMlxServe(["serve", home.model, "--port", "0", ...args], home.env);
  const [, url = ""] = await server.says(/"url":"(\S+?)".*"msg":"ready"/);
  return { ...server, url };
}

type Seen = { env: Record<string, string>; args: string[] };

test("each agent gets the server's address, a key and the model's name, and its own arguments", async () => {
  const server = await startServe();
  const before = readdirSync(home.env.HOME!).sort();
  const given = { ...env, ANTHROPIC_API_KEY: "sk-ant", CLAUDE_CODE_USE_BEDROCK: "1", OTHER: "x" };
  const seen: Record<string, Seen> = {};
  for (const { name } of agents) {
    const { stdout, stderr, exitCode } = await mlxServe(
      ["launch", name, "--", "-p", "say hi", "--print"],
      given,
    );
    expect([stderr, exitCode]).toEqual(["", 7]);
    seen[name] = JSON.parse(stdout);
  }
  const { claude, codex, opencode } = seen as Record<"claude" | "codex" | "opencode", Seen>;
  expect(claude.args).toEqual(["-p", "say hi", "--print"]);
  expect(claude.env).toMatchObject({
    OTHER: "x",
    ANTHROPIC_BASE_URL: server.url,
    ANTHROPIC_AUTH_TOKEN: "none-needed",
    CLAUDE_CODE_AUTO_COMPACT_WINDOW: "4096",
  });
  const models = Object.entries(claude.env).filter(([key]) => key.endsWith("_MODEL"));
  expect(models.length).toBe(7);
  expect([...new Set(models.map(([, value]) => value))]).toEqual(["tiny"]);
  expect(claude.env).not.toHaveProperty("ANTHROPIC_API_KEY");
  expect(claude.env).not.toHaveProperty("CLAUDE_CODE_USE_BEDROCK");

  expect(codex.args.slice(-3)).toEqual(["-p", "say hi", "--print"]);
  const settings = codex.args.slice(0, -3).filter((arg) => arg !== "-c");
  expect(Bun.TOML.parse(settings.join("\n"))).toEqual({
    model: "tiny",
    review_model: "tiny",
    model_provider: "mlx-serve",
    model_providers: {
      "mlx-serve": {
        name: "mlx-serve",
        base_url: `${server.url}/v1`,
        wire_api: "responses",
        env_key: "LAUNCH_API_KEY",
      },
    },
    model_context_window: 4096,
  });
  expect(codex.env).toMatchObject({ LAUNCH_API_KEY: "none-needed", ANTHROPIC_API_KEY: "sk-ant" });

  expect(opencode.args).toEqual(["-p", "say hi", "--print"]);
  expect(JSON.parse(opencode.env.OPENCODE_CONFIG_CONTENT!)).toMatchObject({
    model: "mlx-serve/tiny",
    small_model: "mlx-serve/tiny",
    provider: {
      "mlx-serve": {
        options: { baseURL: `${server.url}/v1`, apiKey: "{env:LAUNCH_API_KEY}" },
        models: { tiny: { limit: { context: 4096, output: 4096 } } },
      },
    },
  });
  // Nothing of the user's was written.
  expect(readdirSync(home.env.HOME!).sort()).toEqual(before);
  server.kill("SIGTERM");
  await server.ended;
}, 60_000);

test("a server with keys gives the agent one that it accepts; --print shows the same for a shell", async () => {
  const server = await startServe("--api-key", "sk-mine");
  const { stdout } = await mlxServe(["launch", "claude"], env);
  const { ANTHROPIC_AUTH_TOKEN: key = "" } = (JSON.parse(stdout) as Seen).env;
  expect(key).not.toBe("none-needed");
  const headers = { Authorization: `Bearer ${key}` };
  expect((await fetch(`${server.url}/v1/models`, { headers })).status).toBe(200);

  // Without the agent on the PATH too.
  const args = ["launch", "codex", "--print", "--api-key", "sk-mine", "--", "exec", "it's"];
  const printed = await mlxServe(args, { ...env, PATH: "" });
  expect(printed.exitCode).toBe(0);
  const lines = printed.stdout.trim().split("\n");
  expect(lines[0]).toBe("export LAUNCH_API_KEY=sk-mine");
  expect(lines[1]).toStartWith(`codex -c 'model="tiny"'`);
  expect(lines[1]).toEndWith(` exec 'it'\\''s'`);
  expect(lines.length).toBe(2);
  // A shell takes it, and the agent gets the same.
  const shell = Bun.spawnSync(["/bin/sh", "-c", printed.stdout], { env });
  const launched = await mlxServe(
    args.filter((arg) => arg !== "--print"),
    env,
  );
  const seen = JSON.parse(shell.stdout.toString()) as Seen;
  expect(seen.args).toEqual((JSON.parse(launched.stdout) as Seen).args);
  expect(seen.env.LAUNCH_API_KEY).toBe("sk-mine");
  server.kill("SIGTERM");
  await server.ended;
}, 60_000);

test("a signal reaches the agent, whose exit code is launch's", async () => {
  const server = await startServe();
  const launched = startMlxServe(["launch", "claude"], { ...env, STAND_IN_WAITS: "1" });
  await launched.says(/waiting/);
  launched.kill("SIGTERM");
  expect((await launched.ended).exitCode).toBe(9);
  server.kill("SIGTERM");
  await server.ended;
}, 60_000);

test("where no server runs, launch starts one that goes on after the agent", async () => {
  const own = { ...env, MLX_SERVE_PORT: "0" };
  const args = ["launch", "claude", "--model", home.model];
  const { stdout, stderr, exitCode } = await mlxServe(args, own);
  const [entry, ...more] = knownServers(home.env);
  try {
    expect(exitCode).toBe(7);
    expect(more).toEqual([]);
    expect(stderr).toContain(`${entry!.url} is ready; \`mlx-serve stop\` stops it`);
    expect((JSON.parse(stdout) as Seen).env).toMatchObject({
      ANTHROPIC_BASE_URL: entry!.url,
      ANTHROPIC_MODEL: "tiny",
    });
    // The next one uses the same.
    const again = await mlxServe(["launch", "claude"], own);
    expect(again.stderr).toBe("");
    expect((JSON.parse(again.stdout) as Seen).env.ANTHROPIC_BASE_URL).toBe(entry!.url);
  } finally {
    await mlxServe(["stop"], home.env);
  }
}, 60_000);

test("what is wrong is one line", async () => {
  const refusal = async (args: string[], variables: Record<string, string> = env) => {
    const { stderr, exitCode } = await mlxServe(["launch", ...args], variables);
    return [stderr, exitCode];
  };
  const usage =
    "mlx-serve: launch takes one of claude, codex, opencode; arguments for it follow --, as in launch claude -- --help\n";
  expect(await refusal([])).toEqual([usage, 2]);
  expect(await refusal(["aider"])).toEqual([usage, 2]);
  expect(await refusal(["claude", "fix it"])).toEqual([usage, 2]);
  expect(await refusal(["claude"], { ...env, PATH: "" })).toEqual([
    "mlx-serve: claude is not on the PATH: `npm install -g @anthropic-ai/claude-code`\n",
    1,
  ]);
  expect(await refusal(["claude", "--print"])).toEqual([
    "mlx-serve: no server is running: `mlx-serve serve` starts one, --url names one elsewhere\n",
    1,
  ]);
  const own = { ...env, MLX_SERVE_PORT: "0" };
  const [failed] = await refusal(["claude", "--model", "org/none"], own);
  expect(failed).toMatch(/mlx-serve: the server failed to start: .*org\/none/);
  const server = await startServe();
  expect(await refusal(["claude", "--model", "org/none"])).toEqual([
    `mlx-serve: ${server.url} has no model org/none, but tiny\n`,
    1,
  ]);
  server.kill("SIGTERM");
  await server.ended;
}, 60_000);

test("the verb's table has every agent", () => {
  const { values } = verbs.find(({ name }) => name === "launch")!;
  expect(values).toEqual(agents.map(({ name }) => name));
});
