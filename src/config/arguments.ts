// Writes settings as a command line that works from any folder and shell.
import type { LoadedSettings } from "./load.ts";

export type CommandSettings = {
  readonly flags: readonly string[];
  /** Environment variables for secrets, since other users of the machine can see flags. */
  readonly variables: Readonly<Record<string, string>>;
};

/** Returns the settings that came from flags and variables; the settings file is read at each start anyway. */
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
