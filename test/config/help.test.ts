import { expect, test } from "bun:test";
import { serveHelp, settingsMarkdown } from "../../src/config/help.ts";
import { sections, settingList } from "../../src/config/settings.ts";

const spellings = settingList.flatMap(
  ({ flag, metavar, variable, aliases = [], sets = {}, variables = [] }) => [
    metavar ? `${flag} ${metavar}` : flag,
    variable,
    ...aliases,
    ...Object.keys(sets),
    ...variables,
  ],
);

test("the help has every setting, with all its spellings and its default", () => {
  const help = serveHelp(90);
  const words = help.replace(/\s+/g, " ");
  expect(spellings.filter((spelling) => !words.includes(spelling))).toEqual([]);
  for (const { text, default: written } of settingList) {
    expect(words).toContain(text);
    if (written !== undefined) expect(words).toContain(`Default: ${written}.`);
  }
  for (const section of sections) expect(help).toContain(`\n${section}\n`);
  expect(help).toContain("--batching, --no-batching\n");
});

test("the help keeps to the width", () => {
  for (const width of [80, 100]) {
    const longest = Math.max(
      ...serveHelp(width)
        .split("\n")
        .map((line) => line.length),
    );
    expect(longest).toBeLessThanOrEqual(width);
    expect(longest).toBeGreaterThan(width - 10);
  }
});

test("the tables of the documentation have every setting too", () => {
  const text = settingsMarkdown();
  expect(spellings.filter((spelling) => !text.includes(spelling))).toEqual([]);
  const rows = text.split("\n").filter((line) => line.startsWith("| `--"));
  expect(rows).toHaveLength(settingList.length);
  for (const row of rows) expect(row.match(/\|/g)).toHaveLength(5);
});
