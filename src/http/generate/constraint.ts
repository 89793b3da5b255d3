// The constraint that OpenAI's and vLLM's structured-output fields put on an answer.
import { JsonSchema, type ResponseFormat, type StructuredFields } from "../../api/structured.ts";
import { type Constraint, jsonDocument } from "../../conversation/constraint.ts";
import { badRequest } from "../frame/errors.ts";

type ConstraintFields = StructuredFields & { response_format?: ResponseFormat | undefined };

/** Returns the constraint, or undefined if the request has none. */
export function constraintOf(asked: ConstraintFields): Constraint | undefined {
  const { response_format: form, structured_outputs: outputs = {} } = asked;
  const found: Constraint[] = [];
  const one = <T>(param: string, value: T | undefined, make: (value: T) => Form) => {
    if (value !== undefined) found.push({ param, ...make(value) });
  };
  if (form?.type === "json_object") one("response_format", anyObject, jsonDocument);
  if (form?.type === "json_schema") {
    one("response_format", form.json_schema.schema ?? anyObject, jsonDocument);
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
    one(param("json"), fields.json, (schema) => jsonDocument(parsed(schema, param("json"))));
    one(param("regex"), fields.regex, (pattern) => ({ format: { type: "regex", pattern } }));
    one(param("choice"), fields.choice, (choices) => ({
      format: { type: "or", elements: choices.map((value) => ({ type: "const_string", value })) },
    }));
    one(param("grammar"), fields.grammar, (grammar) => ({ format: { type: "grammar", grammar } }));
  }
  if (outputs.json_object) one("structured_outputs", anyObject, jsonDocument);
  const [first, second] = found;
  if (second) {
    const message = `Invalid '${second.param}': only one constraint is allowed.`;
    throw badRequest(second.param, message, "invalid_value");
  }
  return first;
}

type Form = Omit<Constraint, "param">;

const anyObject: JsonSchema = { type: "object" };

/** Parses the schema if the client has sent it as a JSON string. */
function parsed(schema: JsonSchema | string, param: string): JsonSchema {
  if (typeof schema !== "string") return schema;
  try {
    return JsonSchema.parse(JSON.parse(schema));
  } catch {
    throw badRequest(param, `Invalid '${param}': expected a JSON schema.`, "invalid_value");
  }
}
