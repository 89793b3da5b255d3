// The constraint that a request puts on its answers, in the form that the grammar engine takes.
import type { StructuralTagFormat } from "@mlc-ai/web-xgrammar";
import type { SamplingFields } from "../api/sampling.ts";
import { JsonSchema, type ResponseFormat, type StructuredFields } from "../api/structured.ts";
import type { Grammar } from "../grammar/grammar.ts";
import type { ServedModel } from "../serve/models.ts";
import { badRequest } from "./errors.ts";

export type Constraint = {
  /** The request's field that sets it. */
  param: string;
  format: StructuralTagFormat;
  /** Control tokens that the grammar sees as text. */
  markers?: readonly string[];
  /** Schemas that are enforced completely or rejected. */
  strict?: readonly unknown[];
};

type ConstraintFields = StructuredFields & { response_format?: ResponseFormat | undefined };

/** Undefined if the answer is unconstrained. */
export function constraintOf(asked: ConstraintFields): Constraint | undefined {
  const { response_format: form, structured_outputs: outputs = {} } = asked;
  const found: Constraint[] = [];
  const one = <T>(param: string, value: T | undefined, make: (value: T) => Form) => {
    if (value !== undefined) found.push({ param, ...make(value) });
  };
  if (form?.type === "json_object") one("response_format", anyObject, document);
  if (form?.type === "json_schema") {
    one("response_format", form.json_schema.schema ?? anyObject, document);
  }
  for (const [name, fields] of [
    ["structured_outputs", outputs],
    [
      "guided",
      {
        json: asked.guided_json,
        regex: asked.guided_regex,
        choice: asked.guided_choice,
        grammar: asked.guided_grammar,
      },
    ],
  ] as const) {
    const param = (field: string) => (name === "guided" ? `guided_${field}` : name);
    one(param("json"), fields.json, (schema) => document(parsed(schema, param("json"))));
    one(param("regex"), fields.regex, (pattern) => ({ format: { type: "regex", pattern } }));
    one(param("choice"), fields.choice, (choices) => ({
      format: {
        type: "or",
        elements: choices.map((value) => ({ type: "const_string", value })),
      },
    }));
    one(param("grammar"), fields.grammar, (grammar) => ({ format: { type: "grammar", grammar } }));
  }
  if (outputs.json_object) one("structured_outputs", anyObject, document);
  const [first, second] = found;
  if (second) {
    const message = `Invalid '${second.param}': only one constraint is allowed.`;
    throw badRequest(second.param, message, "invalid_value");
  }
  return first;
}

type Form = Omit<Constraint, "param">;

const anyObject: JsonSchema = { type: "object" };

/** Some clients send a schema as text. */
function parsed(schema: JsonSchema | string, param: string): JsonSchema {
  if (typeof schema !== "string") return schema;
  try {
    return JsonSchema.parse(JSON.parse(schema));
  } catch {
    throw faultyGrammar(param, "expected a JSON schema");
  }
}

function document(schema: JsonSchema): Form {
  return { format: { type: "json_schema", json_schema: schema }, strict: [schema] };
}

export function faultyGrammar(param: string, message: string) {
  return badRequest(param, `Invalid '${param}': ${message}.`, "invalid_value");
}

/** The constraint as a grammar over one model's tokens. */
export function grammarFor(model: ServedModel, constraint: Constraint): Grammar {
  const { format, markers = [], strict = [] } = constraint;
  const { stopTokens } = model.text;
  const size = model.info.vocabulary;
  return {
    vocabulary: {
      path: model.path,
      size,
      stopTokens: [...stopTokens].filter((token) => token < size),
      markers,
    },
    format: JSON.stringify(format),
    strict: strict.map((schema) => JSON.stringify(schema)),
  };
}

/** The grammar decides when an answer ends, so nothing else may. */
export function checkEnd(asked: SamplingFields, param: string): void {
  const other = asked.ignore_eos ? "ignore_eos" : asked.min_tokens > 0 ? "min_tokens" : undefined;
  if (other === undefined) return;
  const message = `Invalid '${other}': not allowed together with ${param}.`;
  throw badRequest(other, message, "invalid_value");
}
