// Runs the service as a unit of the user's systemd.
import { existsSync } from "node:fs";
import { join } from "node:path";
import type { Environment } from "../hub/settings.ts";
import {
  homeOf,
  refuseControls,
  SERVICE_NAME,
  type ServiceCommand,
  type ServiceManager,
  type ServiceState,
} from "./manager.ts";
import { complaint, findTool, runTool } from "./tool.ts";

const UNIT = `${SERVICE_NAME}.service`;

export function systemd(given: Environment): ServiceManager {
  const env = withRuntimeFolder(given);
  const systemctl = findTool(
    "systemctl",
    env,
    "services need systemd here; a supervisor of your own can run `mlx-serve serve`",
  );
  const ask = async (...args: string[]): Promise<string> => {
    const ran = await runTool([systemctl, "--user", ...args], env);
    if (ran.code === 0) return ran.stdout;
    const said = complaint(ran);
    throw new Error(`systemctl --user ${args[0]} failed: ${said}${noSession(said)}`);
  };
  const config = env.XDG_CONFIG_HOME || join(homeOf(env), ".config");
  return {
    name: "systemd",
    file: join(config, "systemd", "user", UNIT),
    describe: unitText,
    state: async () => stateOf(await ask("show", UNIT, `--property=${properties.join(",")}`)),
    async enable() {
      await ask("daemon-reload");
      await ask("enable", UNIT);
      return await lingerHint(env);
    },
    async disable() {
      await ask("disable", "--now", UNIT);
    },
    async forget() {
      await ask("daemon-reload");
    },
    async start() {
      // After repeated failures systemd refuses to start the unit until the failures are reset.
      await ask("reset-failed", UNIT).catch(() => {});
      await ask("start", UNIT);
    },
    async stop() {
      await ask("stop", UNIT);
    },
    logCommand({ lines, follow }) {
      const journalctl = findTool("journalctl", env, "needed to show the log");
      const more = follow ? ["--follow"] : ["--no-pager"];
      return [journalctl, "--user", `--unit=${UNIT}`, "--output=cat", `--lines=${lines}`, ...more];
    },
  };
}

/** Sets XDG_RUNTIME_DIR, by which systemctl finds the user's systemd; `su` and cron do not set it. */
function withRuntimeFolder(env: Environment): Environment {
  const folder = `/run/user/${process.getuid?.()}`;
  return env.XDG_RUNTIME_DIR || !existsSync(folder) ? env : { ...env, XDG_RUNTIME_DIR: folder };
}

function noSession(said: string): string {
  if (!/connect to .*bus|XDG_RUNTIME_DIR|not been booted with systemd/i.test(said)) return "";
  return (
    ". This user has no systemd session: log in as the user, not by su or sudo; on a machine " +
    "without logins `loginctl enable-linger` starts one"
  );
}

/** Returns a hint unless lingering is on: without it, the user's services end with the last session. */
async function lingerHint(env: Environment): Promise<string[]> {
  const loginctl = Bun.which("loginctl", { PATH: env.PATH ?? "" });
  const user = env.USER || env.LOGNAME;
  if (!loginctl || !user) return [];
  const { stdout } = await runTool([loginctl, "show-user", user, "--property=Linger"], env);
  if (stdout.trim() !== "Linger=no") return [];
  return [
    "it ends when you log out; `loginctl enable-linger` keeps it running, and starts it at boot",
  ];
}

const properties = ["ActiveState", "SubState", "MainPID", "Result", "ExecMainStatus"] as const;

function stateOf(shown: string): ServiceState {
  const values = new Map(
    shown
      .trim()
      .split("\n")
      .map((line) => {
        const at = line.indexOf("=");
        return [line.slice(0, at), line.slice(at + 1)] as const;
      }),
  );
  const [active = "unknown", sub = "", pid, result, status] = properties.map((name) =>
    values.get(name),
  );
  const hasFailed = result !== undefined && result !== "success";
  const why = hasFailed ? ` (${result}, exit code ${status})` : "";
  const words =
    active === "active" || active === "activating" || active === "deactivating"
      ? `${sub}${why}`
      : active === "inactive"
        ? "stopped"
        : `${active}${why}`;
  return { pid: Number(pid) > 0 ? Number(pid) : undefined, words, hasFailed };
}

function unitText(command: ServiceCommand): string {
  refuseControls(command);
  const [program, ...args] = command.words;
  // systemd rejects a program path with one of these characters, so /bin/sh gets the path as an argument and runs it.
  const words = /["'\\]/.test(program)
    ? ["/bin/sh", "-c", 'exec "$0" "$@"', program, ...args]
    : [program, ...args];
  // The colon before the program disables the expansion of $ in the line.
  const line = [`:${words[0]}`, ...words.slice(1)].map(quoted).join(" ");
  const variables = Object.entries(command.variables).map(
    ([name, value]) => `Environment=${quoted(`${name}=${value}`)}\n`,
  );
  return `# Written by \`mlx-serve service install\`, which overwrites it each time.
[Unit]
Description=mlx-serve, language models over the OpenAI API
StartLimitIntervalSec=300
StartLimitBurst=5

[Service]
ExecStart=${line}
${variables.join("")}Restart=on-failure
RestartSec=5
# Restarting does not fix wrong usage.
RestartPreventExitStatus=2
TimeoutStopSec=${command.stopSeconds}

[Install]
WantedBy=default.target
`;
}

/** Quotes a word as systemd.syntax(7) specifies; doubles %, which would start a specifier. */
function quoted(word: string): string {
  return `"${word.replace(/[\\"]/g, "\\$&").replaceAll("%", "%%")}"`;
}
