// Settings as a command line that means the same from any folder and in any shell.
import type { LoadedSettings } from "./load.ts";

export type CommandSettings = {
  readonly flags: readonly string[];
  /** Secrets: other users of the machine can see flags. */
  readonly variables: Readonly<Record<string, string>>;
};

/** Of what flags and variables have set; the settings file is read at each start. */
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
