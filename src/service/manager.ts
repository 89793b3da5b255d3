// A user service: runs the server at login and restarts it after a crash. It is managed by systemd on Linux and launchd
// on macOS, through their command lines.
import { homedir } from "node:os";
import type { Environment } from "../hub/settings.ts";

/** The service's name in systemd and launchd. */
export const SERVICE_NAME = "mlx-serve";

export type ServiceCommand = {
  /** The program's full path, and its arguments. */
  readonly words: readonly [string, ...string[]];
  readonly variables: Readonly<Record<string, string>>;
  /** Maximum time to stop. */
  readonly stopSeconds: number;
};

export type ServiceState = {
  /** Process ID, if running. */
  readonly pid: number | undefined;
  /** The state in the manager's words: running, stopped, or failed with the reason. */
  readonly words: string;
  readonly hasFailed: boolean;
};

export type LogOptions = { readonly lines: number; readonly follow: boolean };

export type ServiceManager = {
  readonly name: string;
  /** The file that describes the service. */
  readonly file: string;
  describe(command: ServiceCommand): string;
  state(): Promise<ServiceState>;
  /** Makes the manager read the written file and start the service at every login. Returns hints for the user. */
  enable(): Promise<string[]>;
  /** Called before the file is removed. */
  disable(): Promise<void>;
  /** Called after the file was removed. */
  forget(): Promise<void>;
  start(): Promise<void>;
  /** Resolves once the process has exited. */
  stop(): Promise<void>;
  /** The command that shows the service's log. */
  logCommand(options: LogOptions): string[];
};

export function homeOf(env: Environment): string {
  return env.HOME || homedir();
}

/** Rejects control characters, which neither file format supports and no legitimate path contains. */
export function refuseControls({ words, variables }: ServiceCommand): void {
  const all = [...words, ...Object.entries(variables).map(([name, value]) => `${name}=${value}`)];
  const wrong = all.find((word) => /\p{Cc}/u.test(word));
  if (wrong !== undefined) {
    throw new Error(`a service must not contain control characters: ${JSON.stringify(wrong)}`);
  }
}
