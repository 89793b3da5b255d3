import { expect, test } from "bun:test";
import { settingsHelp, settingsMarkdown } from "../../src/config/help.ts";
import { sections, settingList } from "../../src/config/settings.ts";

const spellings = settingList.flatMap(
  ({ flag, variable, aliases = [], sets = {}, variables = [] }) => [
    flag,
    variable,
    ...aliases,
    ...Object.keys(sets),
    ...variables,
  ],
);

/** Those that the text does not have as words of their own. */
function absent(text: string): string[] {
  const words = new Set(text.split(/[\s,[\]`|]+/));
  return spellings.filter((spelling) => !words.has(spelling));
}

test("the help has every setting, with all its spellings and its default", () => {
  const help = settingsHelp(90);
  expect(absent(help)).toEqual([]);
  const words = help.replace(/\s+/g, " ");
  for (const { flag, metavar, text, default: written } of settingList) {
    if (metavar) expect(help).toContain(`  ${flag} ${metavar}\n`);
    expect(words).toContain(text);
    if (written !== undefined) expect(words).toContain(`Default: ${written}.`);
  }
  for (const section of sections) expect(help).toContain(`\n${section}\n`);
  expect(help).toContain("--batching, --no-batching\n");
});

test("the help keeps to the width", () => {
  for (const width of [80, 100]) {
    const longest = Math.max(
      ...settingsHelp(width)
        .split("\n")
        .map((line) => line.length),
    );
    expect(longest).toBeLessThanOrEqual(width);
    expect(longest).toBeGreaterThan(width - 10);
  }
});

test("the tables of the documentation have every setting too", () => {
  const text = settingsMarkdown();
  expect(absent(text)).toEqual([]);
  const rows = text.split("\n").filter((line) => line.startsWith("| `--"));
  expect(rows).toHaveLength(settingList.length);
  for (const row of rows) expect(row.match(/\|/g)).toHaveLength(5);
});
