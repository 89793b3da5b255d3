// Renders the OpenAPI document as a web page without scripts, fonts or images, so that it works offline and under a
// strict content security policy.
import { html } from "hono/html";
import type { Route } from "./frame/route.ts";
import type { JsonSchema, OpenApiDocument, Operation } from "./openapi.ts";

type Html = ReturnType<typeof html>;
type Schemas = Readonly<Record<string, JsonSchema>>;
type DocumentedServer = { url: string; needsKey: boolean };
type Entry = { method: Route["method"]; path: string; operation: Operation };
type Field = { name: string; type: string; required: boolean; description: string };

const keyNote =
  "Requests need an API key in the header `Authorization: Bearer <key>`. The examples read it from the variable `MLX_SERVE_API_KEY`.";

export function docsPage(document: OpenApiDocument): Html {
  const { info, paths, components } = document;
  const [{ url } = { url: "" }] = document.servers;
  const needsKey = document.security.length > 0;
  const entries = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ method, path, operation }) as Entry),
  );
  const tags = Object.entries(Object.groupBy(entries, ({ operation }) => operation.tags[0]!));
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${info.title} API</title>
<style>
  :root { color-scheme: light dark; --line: light-dark(#d9dce1, #3a3f47); --soft: light-dark(#f4f5f7, #22262c); --dim: light-dark(#5b6470, #9aa4b1); --accent: light-dark(#0b62c4, #79b8ff); }
  body { margin: 0 auto; max-width: 60rem; padding: 1rem 1.25rem 4rem; font: 16px/1.5 system-ui, sans-serif; background: light-dark(#fff, #16191d); color: light-dark(#1c2025, #e3e7ec); }
  h1 small { font-weight: normal; font-size: 1rem; color: var(--dim); }
  h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
  h3 { margin: 2rem 0 .25rem; font: 600 1rem ui-monospace, monospace; overflow-wrap: anywhere; }
  h3 b { color: var(--accent); text-transform: uppercase; }
  p { margin: .25rem 0; }
  nav ul { columns: 18rem; padding: 0; list-style: none; }
  a { color: var(--accent); text-decoration: none; }
  code, pre, td:first-child { font: .875rem/1.5 ui-monospace, monospace; }
  pre { margin: .5rem 0; padding: .75rem; overflow-x: auto; background: var(--soft); border-radius: .375rem; }
  summary { cursor: pointer; color: var(--dim); }
  table { width: 100%; border-collapse: collapse; font-size: .9rem; }
  td { padding: .3rem .75rem .3rem 0; border-top: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
  td:first-child { width: 30%; }
  td:nth-child(2) { width: 22%; color: var(--dim); }
</style>
</head>
<body>
<h1>${info.title} <small>${info.version}</small></h1>
<p>${prose(info.description)}</p>
${needsKey ? html`<p>${prose(keyNote)}</p>` : ""}
<nav><ul>${entries.map(({ method, path, operation: { operationId } }) => html`<li><a href="#${operationId}">${method.toUpperCase()} ${path}</a></li>`)}</ul></nav>
${tags.map(
  ([tag, group]) => html`<section>
<h2>${tag}</h2>
${group!.map((entry) => article(entry, { url, needsKey }, components.schemas))}
</section>`,
)}
</body>
</html>`;
}

function article(
  { method, path, operation }: Entry,
  server: DocumentedServer,
  schemas: Schemas,
): Html {
  const { operationId, summary, parameters = [], requestBody, responses } = operation;
  const [request] = Object.values(requestBody?.content ?? {}).map(({ schema }) => schema);
  const answers = Object.entries(responses["200"]?.content ?? {});
  const others = Object.entries(responses).filter(([status]) => status !== "200");
  return html`<article id="${operationId}">
<h3><b>${method}</b> ${path}</h3>
<p>${prose(summary)}.</p>
<pre>${curl({ method, path, operation }, server)}</pre>
${parameters.map(({ name }) => html`<p><code>{${name}}</code>: a part of the path.</p>`)}
${request && fieldTable("The request", request, schemas)}
${answers.map(([type, { schema }]) => schema && fieldTable(answerTitle(type), schema, schemas))}
<details><summary>Other statuses</summary><table>${others.map(([status, { description }]) => html`<tr><td>${status}</td><td>${prose(description)}</td></tr>`)}</table></details>
</article>`;
}

function answerTitle(mediaType: string): string {
  if (mediaType === "application/x-ndjson") return "A line of the stream";
  return mediaType === "text/event-stream" ? "An event of the stream" : "The response";
}

function curl({ method, path, operation }: Entry, { url, needsKey }: DocumentedServer): string {
  const { requestBody, security } = operation;
  const { "application/json": json, "multipart/form-data": form } = requestBody?.content ?? {};
  return [
    `curl ${url}${path.replace(/\{\w+\}/g, "default")}`,
    ...(method === "get" || requestBody ? [] : [`-X ${method.toUpperCase()}`]),
    ...(security || !needsKey ? [] : [`-H "Authorization: Bearer $MLX_SERVE_API_KEY"`]),
    ...(json ? [`-H "Content-Type: application/json"`] : []),
    ...(json?.example ? [`-d '${JSON.stringify(json.example)}'`] : []),
    ...Object.entries(form?.example ?? {}).map(([name, value]) => `-F ${name}=${value}`),
  ].join(" \\\n  ");
}

function fieldTable(title: string, schema: JsonSchema, schemas: Schemas): Html {
  const fields = fieldsOf(schema, "", schemas);
  // The variants of an object may have equal fields, which are listed once.
  const unique = new Map(fields.map((field) => [JSON.stringify(field), field]));
  return html`<details><summary>${title}</summary><table>${[...unique.values()].map(
    ({ name, type, required, description }) => html`<tr>
<td>${name}</td><td>${type}${required ? ", required" : ""}</td><td>${prose(description)}</td></tr>`,
  )}</table></details>`;
}

/** Returns all fields of the schema; nested fields are named by their path. */
function fieldsOf(schema: JsonSchema, path: string, schemas: Schemas): Field[] {
  const {
    properties = {},
    required = [],
    items,
    contentSchema,
    anyOf = [],
    oneOf = [],
  } = resolved(schema, schemas);
  const own = Object.entries(properties).flatMap(([key, value]) => {
    const field = resolved(value as JsonSchema, schemas);
    const name = path === "" ? key : `${path}.${key}`;
    const { default: preset, description = "" } = field;
    const note = preset === undefined ? "" : ` Default: \`${JSON.stringify(preset)}\`.`;
    return [
      {
        name,
        type: typeOf(field, schemas),
        required: required.includes(key),
        description: description + note,
      },
      ...fieldsOf(field, name, schemas),
    ];
  });
  const variants = [...anyOf, ...oneOf] as JsonSchema[];
  return [
    ...own,
    ...variants.flatMap((variant) => fieldsOf(variant, path, schemas)),
    ...(items ? fieldsOf(items as JsonSchema, `${path}[]`, schemas) : []),
    ...(contentSchema ? fieldsOf(contentSchema as JsonSchema, path, schemas) : []),
  ];
}

function typeOf(schema: JsonSchema, schemas: Schemas): string {
  const { const: only, enum: values, type, items, anyOf, oneOf } = resolved(schema, schemas);
  if (only !== undefined) return JSON.stringify(only);
  if (values) return values.map((value) => JSON.stringify(value)).join(" or ");
  const variants = (anyOf ?? oneOf) as JsonSchema[] | undefined;
  if (variants) return [...new Set(variants.map((each) => typeOf(each, schemas)))].join(" or ");
  if (type === "array") return `array of ${typeOf(items as JsonSchema, schemas)}`;
  return `${Array.isArray(type) ? type.join(" or ") : (type ?? "anything")}${rangeOf(schema)}`;
}

/** Formats the range of a number, without bounds that merely say that it is a safe integer. */
function rangeOf({ minimum, exclusiveMinimum, maximum }: JsonSchema): string {
  const above = exclusiveMinimum === undefined ? "" : "above ";
  const from = Number(exclusiveMinimum ?? minimum ?? Number.MIN_SAFE_INTEGER);
  const to = Number(maximum ?? Number.MAX_SAFE_INTEGER);
  const [low, high] = [from > Number.MIN_SAFE_INTEGER, to < Number.MAX_SAFE_INTEGER];
  if (low && high) return `, ${above}${from} to ${to}`;
  if (low) return `, ${above || "from "}${from}`;
  return high ? `, to ${to}` : "";
}

function resolved(schema: JsonSchema, schemas: Schemas): JsonSchema {
  return schema.$ref === undefined ? schema : schemas[schema.$ref.split("/").at(-1)!]!;
}

/** Splits text into plain text and code, which is in backticks. */
function prose(text: string): (string | Html)[] {
  return text.split("`").map((part, at) => (at % 2 === 0 ? part : html`<code>${part}</code>`));
}
