// Generates parts of the documentation from the program: `npm run -s docs`. A part is enclosed by <!-- made: name -->
// and <!-- end -->; test/docs fails if one is out of date.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { modes } from "../src/bench/modes.ts";
import { verbs } from "../src/cli/verbs.ts";
import { settingsMarkdown } from "../src/config/help.ts";
import { otherVariables } from "../src/config/variables.ts";
import { Metrics } from "../src/http/frame/metrics.ts";
import { type JsonSchema, openApiDocument } from "../src/http/openapi.ts";
import { routes } from "../src/http/routes.ts";
import { Admission } from "../src/serve/admission.ts";
import type { ServedModels } from "../src/serve/models.ts";
import { macTable } from "./mac-table.ts";
import { ggufList, modelTable } from "./model-table.ts";

const root = join(import.meta.dir, "..");

/** The documents for readers, by path. */
export const documents: readonly string[] = [
  "README.md",
  "CONTRIBUTING.md",
  "examples/README.md",
  ...readdirSync(join(root, "docs"))
    .filter((name) => name.endsWith(".md"))
    .map((name) => `docs/${name}`),
];

const parts: Readonly<Record<string, () => string | Promise<string>>> = {
  settings: () => settingsMarkdown().trimEnd(),
  verbs: () =>
    table(
      ["verb", "what it is for"],
      codeFirst(verbs.map(({ name, usage = "", summary }) => [`${name} ${usage}`.trim(), summary])),
    ),
  variables: () => table(["variable", "what it is"], codeFirst(Object.entries(otherVariables))),
  endpoints: () =>
    table(
      ["endpoint", "what it is"],
      codeFirst(
        routes.map(({ method, path, summary }) => [`${method.toUpperCase()} ${path}`, summary]),
      ),
    ),
  "fields of both": () => fieldTable(fieldsOf("ChatRequest").filter(isShared)),
  "fields of chats": () => fieldTable(fieldsOf("ChatRequest").filter((each) => !isShared(each))),
  "fields of texts": () =>
    fieldTable(fieldsOf("CompletionRequest").filter((each) => !isShared(each))),
  "fields of messages": () => fieldTable(fieldsOf("MessagesRequest")),
  "fields of responses": () => fieldTable(fieldsOf("ResponsesRequest")),
  "fields of Ollama's chats": () => fieldTable(fieldsOf("OllamaChatRequest")),
  "fields of Ollama's prompts": () =>
    fieldTable(
      fieldsOf("OllamaGenerateRequest").filter(
        ({ name }) => !fieldsOf("OllamaChatRequest").some((field) => field.name === name),
      ),
    ),
  "options of Ollama": () =>
    fieldTable(fieldsIn(components.schemas.OllamaChatRequest!.properties!.options as JsonSchema)),
  "fields of embeddings": () => fieldTable(fieldsOf("EmbeddingRequest")),
  "fields of reranking": () => fieldTable(fieldsOf("RerankRequest")),
  metrics: metricTable,
  modes: () =>
    table(
      ["mode", "what it sends"],
      codeFirst(Object.entries(modes).map(([name, { text }]) => [name, text])),
    ),
  architectures: modelTable,
  "plans on Macs": macTable,
  gguf: ggufList,
};

/** The text with all its parts regenerated. */
export async function refreshed(text: string): Promise<string> {
  const pieces = text.split(/(<!-- made: [^>]* -->\n[\s\S]*?<!-- end -->)/);
  return (await Promise.all(pieces.map(refreshedPart))).join("");
}

async function refreshedPart(piece: string): Promise<string> {
  const [head, name] = /^<!-- made: (.*) -->\n/.exec(piece) ?? [];
  if (head === undefined || name === undefined) return piece;
  const make = parts[name];
  if (!make) throw new Error(`no part is named ${name}; known: ${Object.keys(parts).join(", ")}`);
  return `${head}${await make()}\n<!-- end -->`;
}

type Field = { name: string; preset: unknown; text: string };

const { components } = openApiDocument(routes);

function fieldsOf(request: string): Field[] {
  return fieldsIn(components.schemas[request]!);
}

function fieldsIn({ properties = {} }: JsonSchema): Field[] {
  return Object.entries(properties).map(([name, schema]) => {
    const { default: preset, description = "" } = typeof schema === "object" ? schema : {};
    return { name, preset, text: description };
  });
}

/** Whether chat and text completions share the field. */
function isShared({ name, text }: Field): boolean {
  const same = (field: Field) => field.name === name && field.text === text;
  return fieldsOf("ChatRequest").some(same) && fieldsOf("CompletionRequest").some(same);
}

/** Fields with the same description share a row. */
function fieldTable(fields: readonly Field[]): string {
  const groups = Map.groupBy(fields, ({ text, preset }) => JSON.stringify([text, preset]));
  const rows = Array.from(groups.values(), (group) => {
    const { preset, text } = group[0]!;
    const names = group.map(({ name }) => `\`${name}\``).join(", ");
    return [names, preset === undefined ? "" : `\`${JSON.stringify(preset)}\``, text];
  });
  return table(["field", "default", "what it does"], rows);
}

async function metricTable(): Promise<string> {
  // Only lists the metrics; nothing is measured.
  const models: Pick<ServedModels, "loaded"> = { loaded: () => [] };
  const text = await new Metrics(models as ServedModels, new Admission(1)).text({
    name: "docs",
    owner: true,
  });
  const rows = text.matchAll(/^# HELP (\S+) (.*)\n# TYPE \S+ (\S+)$/gm);
  return table(
    ["metric", "kind", "what it is"],
    Array.from(rows, ([, name, help, kind]) => [`\`${name}\``, kind!, help!]),
  );
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const lines = [head, head.map(() => "---"), ...rows];
  const cell = (text: string) => text.replaceAll("|", "\\|");
  return lines.map((cells) => `| ${cells.map(cell).join(" | ")} |`).join("\n");
}

function codeFirst(rows: readonly (readonly [string, string])[]): string[][] {
  return rows.map(([name, text]) => [`\`${name}\``, text]);
}

if (import.meta.main) {
  for (const path of documents) {
    const before = readFileSync(join(root, path), "utf8");
    const after = await refreshed(before);
    if (after === before) continue;
    writeFileSync(join(root, path), after);
    console.log(path);
  }
}
