// Describes the settings for `mlx-serve serve --help` and the documentation.
import { offFlag, type Setting, sections, settingList } from "./settings.ts";

const introduction =
  "Each setting is a flag, a variable, or a key of a TOML " +
  "file (--max-batch-size 8, MLX_SERVE_MAX_BATCH_SIZE=8, max_batch_size = 8). Flags override " +
  "variables, which override the file. Lists are separated by commas or given by repeating the " +
  "flag; sizes are written as 512MB or 4GiB, durations as 90s or 10m.";

export function settingsHelp(width: number): string {
  const parts = sections.map((section) => {
    const each = settingsOf(section).map((setting) =>
      [`  ${heading(setting)}`, ...Bun.wrapAnsi(explanation(setting), width - 6).split("\n")].join(
        "\n      ",
      ),
    );
    return `${section}\n${each.join("\n")}`;
  });
  return [Bun.wrapAnsi(introduction, width), ...parts].join("\n\n");
}

/** Returns the documentation of all settings, as one table per section. */
export function settingsMarkdown(): string {
  const tables = sections.map((section) => {
    const rows = settingsOf(section).map((setting) => {
      const also = others(setting).map((name) => `\`${name}\``);
      const written = setting.default === undefined ? "" : `\`${setting.default}\``;
      return `| \`${heading(setting)}\` | ${written} | ${purpose(setting)} | ${also.join(", ")} |`;
    });
    const head = "| setting | default | what it does | also |\n|---|---|---|---|";
    return `## ${section}\n${head}\n${rows.join("\n")}`;
  });
  return `${tables.join("\n\n")}\n`;
}

function settingsOf(section: string): Setting[] {
  return settingList.filter((setting) => setting.section === section);
}

function heading(setting: Setting): string {
  const { flag, metavar } = setting;
  if (metavar) return `${flag} ${metavar}`;
  return setting.default === "true" ? `${flag}, ${offFlag(setting)}` : flag;
}

function explanation(setting: Setting): string {
  const written = setting.default === undefined ? "" : ` Default: ${setting.default}.`;
  return `${purpose(setting)}${written} [${others(setting).join(", ")}]`;
}

function purpose({ text, values }: Setting): string {
  return typeof values === "object" ? `${text} One of ${values.join(", ")}.` : text;
}

/** Lists the variables and further flags of a setting. */
function others({ variable, aliases = [], sets = {}, variables = [] }: Setting): string[] {
  return [variable, ...variables, ...aliases, ...Object.keys(sets)];
}
