// Runs real agents against a server: installs Claude Code, Codex and opencode into the cache, and has each read a file
// with a tool and report its content, one after the other and then two concurrently.
//
//   npm run -s agents
//
// Fails if an agent fails or gets no answer, or if the turn after the tool's result computes more than the new messages
// and one block.
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { cacheDirectory, defaultModelPath } from "../ffi/native.ts";
import { startMlxServe } from "../test/support/serve-process.ts";
import { type Recital, writeRecitingModel } from "./agents/reciting-model.ts";

const BLOCK_TOKENS = 32;
const ANSWER = "The note has been read.";
const AGENT_MS = 180_000;

type AgentRun = {
  name: string;
  package: string;
  /** The word in the agent's task, and the call that the model answers with. */
  word: string;
  tool: string;
  arguments: object;
  args(task: string): string[];
};

const runs: readonly AgentRun[] = [
  {
    name: "claude",
    package: "@anthropic-ai/claude-code@2.1.197",
    word: "walnut",
    tool: "Bash",
    arguments: { command: "cat note.txt", description: "Read the note" },
    args: (task) => ["-p", task, "--allowedTools", "Bash(cat:*)"],
  },
  {
    name: "codex",
    package: "@openai/codex@0.166.0",
    word: "trumpet",
    tool: "exec_command",
    arguments: { cmd: "cat note.txt" },
    args: (task) => ["exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", task],
  },
  {
    name: "opencode",
    package: "opencode-ai@1.18.33",
    word: "lizard",
    tool: "bash",
    arguments: { command: "cat note.txt" },
    args: (task) => ["run", task],
  },
];
const RESULT_WORD = "volcano";

/** A request's log line. */
type Line = {
  msg: string;
  key: string;
  path: string;
  finish?: string;
  promptTokens: number;
  cachedTokens: number;
  prefixMiss?: object;
};

type Outcome = { agent: string; problems: string[]; turns: string };

const folder = mkdtempSync(join(tmpdir(), "mlx-serve-agents-"));
try {
  process.exitCode = await main();
} finally {
  rmSync(folder, { recursive: true, force: true });
}

async function main(): Promise<number> {
  const bin = install();
  const model = join(folder, "recites");
  const recitals: Recital[] = [
    ...runs.map(({ word, tool, arguments: given }) => {
      // With the whitespace that the grammar of calls requires.
      const values = Object.entries(given).map(([key, value]) => `"${key}": "${value}"`);
      const call = `{"name": "${tool}", "arguments": {${values.join(", ")}}}`;
      return { word, says: `<tool_call>\n${call}\n</tool_call>` };
    }),
    { word: RESULT_WORD, says: ANSWER },
  ];
  writeRecitingModel(model, defaultModelPath(), recitals, "Ready.");
  // One key per agent and round: keys share no cached blocks, and the log names them.
  const rounds = [[runs[0]!], [runs[1]!], [runs[2]!], [runs[0]!, runs[1]!]];
  const launches = rounds.map((round) =>
    round.map((run) => ({ run, key: `sk-${crypto.randomUUID()}` })),
  );
  const keys = launches.flat().map(({ key }) => `--api-key=${key}`);
  const flags = ["--port=0", "--log-format=json", "--log-level=debug", ...keys];
  const server = startMlxServe(["serve", model, ...flags], process.env);
  process.on("exit", () => server.kill("SIGKILL"));
  const [, url = ""] = await server.says(/"url":"(\S+?)".*"msg":"ready"/);
  const ended: string[][] = [];
  for (const round of launches) {
    ended.push(...(await Promise.all(round.map(({ run, key }) => launch(run, url, key, bin)))));
  }
  server.kill("SIGTERM");
  const { stderr } = await server.ended;
  const lines = stderr
    .split("\n")
    .filter((line) => line.includes('"msg":"request"'))
    .map((line) => JSON.parse(line) as Line);
  const outcomes = launches.flat().map(({ run }, i): Outcome => {
    const own = lines.filter(({ key }) => key === `api-key-${i + 1}`);
    const { turns, problems } = cacheProblems(own);
    return { agent: run.name, problems: [...ended[i]!, ...problems], turns };
  });
  report(rounds, outcomes);
  return outcomes.some(({ problems }) => problems.length > 0) ? 1 : 0;
}

/** Installs the agents; returns the folder of their programs. */
function install(): string {
  const prefix = join(cacheDirectory(), "agents");
  const wanted = runs.map((run) => run.package);
  const stamp = join(prefix, "installed.json");
  const bin = join(prefix, "node_modules", ".bin");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === JSON.stringify(wanted)) return bin;
  mkdirSync(prefix, { recursive: true });
  const npm = ["npm", "install", "--prefix", prefix, "--no-audit", "--no-fund", "--loglevel=error"];
  const { exitCode } = Bun.spawnSync([...npm, ...wanted], {
    cwd: prefix,
    stdio: ["ignore", "inherit", "inherit"],
  });
  if (exitCode !== 0) throw new Error("the agents cannot be installed");
  writeFileSync(stamp, JSON.stringify(wanted));
  return bin;
}

/** Returns the problems. */
async function launch(run: AgentRun, url: string, key: string, bin: string): Promise<string[]> {
  const home = mkdtempSync(join(folder, `${run.name}-`));
  const work = join(home, "work");
  mkdirSync(work);
  writeFileSync(join(work, "note.txt"), `There is a ${RESULT_WORD} here.\n`);
  const task = `Read note.txt and tell me about the ${run.word} in it.`;
  const env = {
    PATH: `${bin}:${process.env.PATH}`,
    HOME: home,
    TERM: "dumb",
    MLX_SERVE_CACHE: join(home, "cache"),
  };
  const main = join(import.meta.dir, "../src/main.ts");
  const command = ["launch", run.name, "--url", url, "--api-key", key, "--", ...run.args(task)];
  const child = Bun.spawn([process.execPath, main, ...command], {
    cwd: work,
    env,
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
    timeout: AGENT_MS,
  });
  const [stdout, stderr] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ]);
  const code = await child.exited;
  const said = `${stdout}\n${stderr}`;
  return [
    ...(code === 0 ? [] : [`it ended with ${code}: ${said.trim().slice(-2000)}`]),
    ...(stdout.includes(ANSWER) ? [] : [`it said: ${said.trim().slice(-2000)}`]),
  ];
}

/** Compares the turn with the call and the next one. */
function cacheProblems(lines: readonly Line[]): { turns: string; problems: string[] } {
  const first = lines.findIndex(({ finish }) => finish === "calls");
  const call = lines[first];
  const next = lines.slice(first + 1).find((line) => line.promptTokens > (call?.promptTokens ?? 0));
  if (!call || !next) return { turns: "-", problems: ["no turn with a call and its result"] };
  const turns = `${call.promptTokens} tokens, then ${next.promptTokens} of which ${next.cachedTokens} were cached`;
  const isCached = next.cachedTokens >= call.promptTokens - BLOCK_TOKENS;
  const miss = `the second turn missed: ${JSON.stringify(next.prefixMiss)}`;
  return { turns, problems: isCached ? [] : [miss] };
}

function report(rounds: readonly (readonly AgentRun[])[], outcomes: readonly Outcome[]): void {
  let at = 0;
  for (const round of rounds) {
    console.log(round.length === 1 ? "alone" : `${round.length} at once`);
    for (const _ of round) {
      const { agent, problems, turns } = outcomes[at++]!;
      console.log(`  ${problems.length === 0 ? "ok  " : "FAIL"} ${agent.padEnd(10)}${turns}`);
      for (const problem of problems)
        console.log(`       ${problem.replaceAll("\n", "\n       ")}`);
    }
  }
}
