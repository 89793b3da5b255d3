// Writes settings as a command line that works from any folder and shell.
import type { LoadedSettings } from "./load.ts";

export type CommandSettings = {
  readonly flags: readonly string[];
  /** Secrets, since flags are visible to other users of the machine. */
  readonly variables: Readonly<Record<string, string>>;
};

/** Covers only flags and variables: the settings file is read at each start. */
export function commandSettings({ settings, written }: LoadedSettings): CommandSettings {
  const secrets = written.filter(({ setting }) => setting.isSecret);
  const others = written.filter(({ setting }) => !setting.isSecret);
  return {
    flags: others.flatMap(({ setting, value }) =>
      [value].flat().map((each) => `${setting.flag}=${each}`),
    ),
    variables: Object.fromEntries(
      secrets.map(({ setting: { variable, key } }) => [variable, JSON.stringify(settings[key])]),
    ),
  };
}
