// Runs every program of examples/ against a server and compares its output with the one that its last lines show.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { extname, join } from "node:path";
import { pythonWithClients } from "../support/python-clients.ts";
import { writeReranker } from "../support/reranker-model.ts";
import { DocumentShell } from "./document-shell.ts";
import { patternOf, root } from "./documents.ts";

const folder = join(root, "examples");
const readme = readFileSync(join(folder, "README.md"), "utf8");

const interpreters: Readonly<Record<string, { name: string; command: () => string[] }>> = {
  ".sh": { name: "sh", command: () => ["sh"] },
  ".ts": { name: "npx bun", command: () => [process.execPath, "run", "-"] },
  ".py": { name: "python3", command: () => [pythonWithClients(), "-"] },
};

const examples = readdirSync(folder)
  .toSorted()
  .filter((name) => name !== "README.md")
  .map((name) => {
    const text = readFileSync(join(folder, name), "utf8");
    const printed = text.split(/^(?:#|\/\/) Prints:\n/m)[1];
    if (printed === undefined) throw new Error(`${name} does not say what it prints`);
    const run = `${interpreters[extname(name)]!.name} examples/${name}`;
    return { name, text, run, printed: printed.replaceAll(/^(#|\/\/) /gm, "") };
  });
/** The program that names a model needs an embedding model: a tiny one stands in for it. */
const [ofDefault, ofEmbedder] = [false, true].map((isNamed) =>
  examples.filter(({ text }) => / --model /.test(text) === isNamed),
) as [typeof examples, typeof examples];

const models = mkdtempSync(join(tmpdir(), "mlx-serve-examples-"));
let shell: DocumentShell;
beforeAll(async () => {
  pythonWithClients();
  shell = await DocumentShell.start({ isTiny: false, hasNpm: false });
}, 300_000);
afterAll(async () => {
  await shell.stop();
  rmSync(models, { recursive: true });
}, 30_000);

async function runAll(programs: typeof examples): Promise<void> {
  for (const { name, text, printed } of programs) {
    const { command } = interpreters[extname(name)]!;
    expect(`${name}: ${await shell.interpret(command(), text)}`).toMatch(patternOf(printed));
  }
}

test("every example prints what it says", async () => {
  await shell.run("npm start");
  await runAll(ofDefault);
}, 60_000);

test("so does the example of an embedding model", async () => {
  const embedder = join(models, "embedder");
  writeReranker(embedder, "cosine");
  await shell.run(`npm start -- --model ${embedder}`);
  expect(ofEmbedder.map(({ name }) => name)).toEqual(["search.ts"]);
  await runAll(ofEmbedder);
}, 60_000);

test("every example is in the table, says how to run it, and is short", () => {
  const rows = readme.matchAll(/^\| \[(.+)\]\(\1\) \| [^|]+ \| `(.+)` \|$/gm);
  const listed = Array.from(rows, ([, name, run]) => ({ name: name!, run: run! }));
  expect(listed.sort((a, b) => (a.name < b.name ? -1 : 1))).toEqual(
    examples.map(({ name, run }) => ({ name, run })),
  );
  for (const { text, run } of examples) {
    expect(text.split("\n").find((line) => / Run: /.test(line))).toEndWith(run);
    expect(text.split("\n").length).toBeLessThan(47);
  }
});
