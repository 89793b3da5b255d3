// A service of this user: the server as a process that starts at login and again after a crash. systemd keeps it on
// Linux, launchd on macOS; both are asked through their command line.
import { homedir } from "node:os";
import type { Environment } from "../hub/settings.ts";

/** The name by which systemd and launchd know it. */
export const SERVICE_NAME = "mlx-serve";

export type ServiceCommand = {
  /** The program by its full path, and its arguments. */
  readonly words: readonly [string, ...string[]];
  readonly variables: Readonly<Record<string, string>>;
  /** How long it may take to end when it is stopped. */
  readonly stopSeconds: number;
};

export type ServiceState = {
  /** Of the process, while there is one. */
  readonly pid: number | undefined;
  /** As the manager calls it: running, stopped, failed and why. */
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
  /** Has the file that was written read, and the service started at every login. Returns what else to know. */
  enable(): Promise<string[]>;
  /** Before the file is removed. */
  disable(): Promise<void>;
  /** After it was removed. */
  forget(): Promise<void>;
  start(): Promise<void>;
  /** Returns when it has ended. */
  stop(): Promise<void>;
  /** The command that shows its log. */
  logCommand(options: LogOptions): string[];
};

export function homeOf(env: Environment): string {
  return env.HOME || homedir();
}

/** Neither kind of file can hold control characters, and no path that is meant well has one. */
export function refuseControls({ words, variables }: ServiceCommand): void {
  const all = [...words, ...Object.entries(variables).map(([name, value]) => `${name}=${value}`)];
  const wrong = all.find((word) => /\p{Cc}/u.test(word));
  if (wrong !== undefined) {
    throw new Error(`a service cannot be given control characters: ${JSON.stringify(wrong)}`);
  }
}
