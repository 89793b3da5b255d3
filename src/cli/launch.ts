// mlx-serve launch: runs a coding agent on the local server. Starts a server if none runs, and leaves it running
// after the agent has exited, because other programs may use it by then.
import { parseArgs } from "node:util";
import { UsageError } from "../config/usage-error.ts";
import { fullName } from "../hub/popular-models.ts";
import type { Environment } from "../hub/settings.ts";
import { type Agent, type AgentServer, agents } from "./agents.ts";
import { findServer, isOpen, listModels, needServer, type Server } from "./server/server-client.ts";
import { startBackgroundServer } from "./server/server-process.ts";
import { print } from "./terminal/print.ts";
import { quotedWord } from "./terminal/shell-word.ts";

const options = {
  print: { type: "boolean" },
  model: { type: "string", short: "m" },
  url: { type: "string" },
  "api-key": { type: "string" },
} as const;

export async function launch(args: string[], env: Environment = process.env): Promise<void> {
  const end = args.includes("--") ? args.indexOf("--") : args.length;
  const { values, positionals } = parseArgs({
    args: args.slice(0, end),
    options,
    allowPositionals: true,
  });
  const [name, ...more] = positionals;
  const agent = agents.find((each) => each.name === name);
  if (!agent || more.length > 0) {
    const names = agents.map((each) => each.name).join(", ");
    throw new UsageError(
      `launch takes one of ${names}; arguments for it follow --, as in launch ${names.split(",")[0]} -- --help`,
    );
  }
  const program = Bun.which(agent.name, { PATH: env.PATH ?? "" });
  if (!program && !values.print) {
    throw new Error(`${agent.name} is not on the PATH: \`npm install -g ${agent.from}\``);
  }
  const found = await (values.print ? needServer : findServer)(values, env);
  const server = found ?? (await startBackgroundServer(values.model, env));
  // Passes the requested model only to a server that was already running; a server started here loads it first.
  const model = values.model === undefined ? undefined : fullName(values.model, env);
  const wanted = await agentServer(server, found ? model : undefined);
  const command = [...agent.args(wanted), ...args.slice(end + 1)];
  if (values.print) print(settingsOf(agent, wanted, command));
  else process.exitCode = await runAgent(program!, command, agent.env(wanted), env);
}

async function agentServer(server: Server, model: string | undefined): Promise<AgentServer> {
  const models = await listModels(server);
  const [main] = models;
  // The model's id is needed, because agents interpret the name "default" themselves.
  const wanted = model === undefined || model === "default" ? main?.id : model;
  const found = models.find(({ id }) => id === wanted);
  if (!found) {
    const names = models.map(({ id }) => id).join(", ");
    throw new Error(`${server.url} has no model ${wanted}, but ${names || "none"}`);
  }
  const key = server.key !== undefined && !(await isOpen(server)) ? server.key : "none-needed";
  return { url: server.url, key, model: found.id, maxTokens: found.max_model_len };
}

/** Returns the agent's settings as shell commands. */
function settingsOf(agent: Agent, server: AgentServer, command: readonly string[]): string {
  const variables = Object.entries(agent.env(server));
  return [
    ...variables.map(([name, value]) =>
      value === undefined ? `unset ${name}` : `export ${name}=${quotedWord(value)}`,
    ),
    [agent.name, ...command].map(quotedWord).join(" "),
  ].join("\n");
}

/** Runs the agent; returns its exit code. */
async function runAgent(
  program: string,
  args: readonly string[],
  own: ReturnType<Agent["env"]>,
  env: Environment,
): Promise<number> {
  const child = Bun.spawn([program, ...args], {
    env: { ...env, ...own },
    stdio: ["inherit", "inherit", "inherit"],
  });
  // Ignores Ctrl-C, which a terminal sends to both processes: the agent decides how to react.
  const ignore = () => {};
  const forward = () => child.kill("SIGTERM");
  process.on("SIGINT", ignore).on("SIGTERM", forward);
  const code = await child.exited;
  process.off("SIGINT", ignore).off("SIGTERM", forward);
  return code;
}
