// A user service: runs the server at login and restarts it after a crash. It is managed by systemd on Linux and launchd
// on macOS, through their command lines.
import { homedir } from "node:os";
import type { Environment } from "../hub/settings.ts";

/** The service's name in systemd and launchd. */
export const SERVICE_NAME = "mlx-serve";

export type ServiceCommand = {
  /** Full path of the program, and its arguments. */
  readonly words: readonly [string, ...string[]];
  readonly variables: Readonly<Record<string, string>>;
  /** Maximum seconds that the service takes to stop. */
  readonly stopSeconds: number;
};

export type ServiceState = {
  /** Process id; undefined if the service does not run. */
  readonly pid: number | undefined;
  /** State as text: running, stopped, or failed with the reason. */
  readonly words: string;
  readonly hasFailed: boolean;
};

export type LogOptions = { readonly lines: number; readonly follow: boolean };

export type ServiceManager = {
  readonly name: string;
  /** Path of the file that describes the service. */
  readonly file: string;
  describe(command: ServiceCommand): string;
  state(): Promise<ServiceState>;
  /** Loads the written file and starts the service at every login; returns hints for the user. */
  enable(): Promise<string[]>;
  /** Disables the service; called before its file is removed. */
  disable(): Promise<void>;
  /** Makes the manager forget the service; called after its file was removed. */
  forget(): Promise<void>;
  start(): Promise<void>;
  /** Stops the service; resolves once its process has exited. */
  stop(): Promise<void>;
  /** Returns the command that shows the service's log. */
  logCommand(options: LogOptions): string[];
};

export function homeOf(env: Environment): string {
  return env.HOME || homedir();
}

/** Throws if the command has control characters, which no path needs and no systemd or launchd file supports. */
export function refuseControls({ words, variables }: ServiceCommand): void {
  const all = [...words, ...Object.entries(variables).map(([name, value]) => `${name}=${value}`)];
  const wrong = all.find((word) => /\p{Cc}/u.test(word));
  if (wrong !== undefined) {
    throw new Error(`a service must not contain control characters: ${JSON.stringify(wrong)}`);
  }
}
