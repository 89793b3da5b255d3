// The table of docs/clients.md: every client has a section, which something runs or which says why nothing does.
import { expect, test } from "bun:test";
import { routes } from "../../src/http/routes.ts";
import { readDocuments } from "./documents.ts";

const { text, sections, blocks } = readDocuments().find(({ path }) => path === "docs/clients.md")!;

const rows = text
  .split("\n")
  .filter((line) => line.startsWith("| ["))
  .map((line) => line.split("|").slice(1, -1))
  .map((cells) => ({
    client: cells[0]!.trim(),
    sections: Array.from(cells[0]!.matchAll(/\(#([^)]+)\)/g), ([, name]) => name!),
    runBy: cells[5]!.trim(),
  }));

test("every client has a section, and every section a client", () => {
  expect(rows.length).toBeGreaterThan(20);
  const [title, ...others] = sections.map(({ name }) => name);
  const listed = new Set(rows.flatMap((row) => row.sections));
  expect(title).toBe("clients");
  expect(others.filter((name) => !listed.has(name))).toEqual([]);
  expect(rows.filter((row) => row.sections.length !== 1)).toEqual([]);
});

test("every section is run, or the table says why not", () => {
  const wrong = rows.filter(({ sections: [own], runBy }) => {
    const { blocks } = sections.find(({ name }) => name === own)!;
    const has = (...infos: string[]) => blocks.some(({ info }) => infos.includes(info));
    // Single commands may be on the list of test/docs/commands.test.ts, programs may not.
    if (runBy.startsWith("`")) return !has("sh", "js", "python");
    return !/^no test: ./.test(runBy) || has("js", "python");
  });
  expect(wrong).toEqual([]);
});

test("settings can be read", () => {
  const parsers = { json: JSON.parse, yaml: Bun.YAML.parse };
  const settings = blocks.filter(({ info }) => info in parsers);
  expect(settings.length).toBeGreaterThan(4);
  for (const { info, text } of settings) {
    expect(parsers[info as keyof typeof parsers](text)).toBeObject();
  }
});

test("every address is one of the server's, or the beginning of some", () => {
  const addresses = text.matchAll(
    /(?:127\.0\.0\.1|host\.docker\.internal):(?:8080|11434)([\w/]*)/g,
  );
  const paths = new Set(Array.from(addresses, ([, path]) => path!));
  const isServed = (path: string) =>
    routes.some((route) => `${route.path}/`.startsWith(`${path}/`));
  expect(paths.size).toBeGreaterThan(5);
  expect([...paths].filter((path) => !isServed(path))).toEqual([]);
});
