// Runs the service as an agent of the user's launchd.
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

const POLL_MS = 100;
/** Maximum time that launchd takes to unload an agent after its process has exited. */
const UNLOAD_MS = 5000;
/** launchd's default stop timeout. */
const DEFAULT_STOP_SECONDS = 20;

type Loaded = ServiceState & { readonly isLoaded: boolean; readonly stopSeconds: number };

export function launchd(env: Environment): ServiceManager {
  const launchctl = findTool("launchctl", env, "services need launchd here");
  // The domain of the user's graphical session, since sessions of network logins end at logout.
  const domain = `gui/${process.getuid?.()}`;
  const target = `${domain}/${SERVICE_NAME}`;
  const file = join(homeOf(env), "Library", "LaunchAgents", `${SERVICE_NAME}.plist`);
  const log = join(homeOf(env), "Library", "Logs", `${SERVICE_NAME}.log`);
  const ask = async (...args: string[]): Promise<void> => {
    const ran = await runTool([launchctl, ...args], env);
    if (ran.code === 0) return;
    const said = complaint(ran);
    throw new Error(`launchctl ${args[0]} failed: ${said}${noSession(ran.code, said)}`);
  };
  const find = async (): Promise<Loaded> => {
    const { code, stdout } = await runTool([launchctl, "print", target], env);
    return loadedOf(code === 0 ? stdout : undefined);
  };
  /** Unloads the agent and waits until its process has drained, since launchctl returns before. */
  const unload = async (): Promise<void> => {
    const { isLoaded, stopSeconds } = await find();
    if (!isLoaded) return;
    // Keeps the error: if stopping is slow, bootout fails with "Operation now in progress", but the stop proceeds.
    const asked = await ask("bootout", target).then(
      () => undefined,
      (error: unknown) => error,
    );
    const deadlineMs = performance.now() + stopSeconds * 1000 + UNLOAD_MS;
    while ((await find()).isLoaded) {
      if (performance.now() > deadlineMs) throw asked ?? new Error(`${target} does not stop`);
      await Bun.sleep(POLL_MS);
    }
  };
  return {
    name: "launchd",
    file,
    describe: (command) => propertyList(command, log),
    state: find,
    async enable() {
      // Reverts an earlier `launchctl disable`, which outlives the agent's file.
      await ask("enable", target);
      return [];
    },
    disable: unload,
    async forget() {},
    async start() {
      if ((await find()).pid !== undefined) return;
      // Unloads an agent that was loaded from an older file.
      await unload();
      await ask("bootstrap", domain, file);
    },
    stop: unload,
    logCommand: ({ lines, follow }) => [
      findTool("tail", env, "needed to show the log"),
      "-n",
      String(lines),
      ...(follow ? ["-F"] : []),
      log,
    ],
  };
}

function noSession(code: number, said: string): string {
  if (code !== 125 && !/domain/i.test(said)) return "";
  return (
    ". launchd runs agents in the session of a user who is logged in at the screen: log in there, or have " +
    "the Mac log in by itself (System Settings, Users & Groups)"
  );
}

/** Parses the output of `launchctl print`; `printed` is undefined if the agent is not loaded. */
function loadedOf(printed: string | undefined): Loaded {
  if (printed === undefined) {
    const none = { pid: undefined, words: "stopped", hasFailed: false };
    return { ...none, isLoaded: false, stopSeconds: 0 };
  }
  const value = (name: string) =>
    new RegExp(`^\\s*${name} = (.*)$`, "m").exec(printed)?.[1]?.trim();
  const pid = Number(value("pid"));
  const code = value("last exit code");
  const hasFailed = code !== undefined && /^[1-9]/.test(code);
  return {
    isLoaded: true,
    pid: pid > 0 ? pid : undefined,
    words: `${value("state") ?? "loaded"}${hasFailed ? ` (last exit code ${code})` : ""}`,
    hasFailed,
    stopSeconds: Number(value("exit timeout")) || DEFAULT_STOP_SECONDS,
  };
}

function propertyList(command: ServiceCommand, log: string): string {
  refuseControls(command);
  const words = command.words.map((word) => `    <string>${Bun.escapeHTML(word)}</string>\n`);
  const variables = Object.entries(command.variables).map(
    ([name, value]) =>
      `    <key>${Bun.escapeHTML(name)}</key>\n    <string>${Bun.escapeHTML(value)}</string>\n`,
  );
  return `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<!-- Written by \`mlx-serve service install\`, which overwrites it each time. -->
<plist version="1.0">
<dict>
  <key>Label</key>
  <string>${SERVICE_NAME}</string>
  <key>ProgramArguments</key>
  <array>
${words.join("")}  </array>
  <key>EnvironmentVariables</key>
  <dict>
${variables.join("")}  </dict>
  <key>RunAtLoad</key>
  <true/>
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key>
    <false/>
  </dict>
  <!-- Interactive, because macOS throttles background processes. -->
  <key>ProcessType</key>
  <string>Interactive</string>
  <key>ExitTimeOut</key>
  <integer>${command.stopSeconds}</integer>
  <key>StandardOutPath</key>
  <string>${Bun.escapeHTML(log)}</string>
  <key>StandardErrorPath</key>
  <string>${Bun.escapeHTML(log)}</string>
</dict>
</plist>
`;
}
