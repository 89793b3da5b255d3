// The constraint on a conversation's answers, in the format of the grammar engine.
import type { StructuralTagFormat } from "@mlc-ai/web-xgrammar";
import type { Grammar } from "../grammar/grammar.ts";
import type { ServedModel } from "../serve/models.ts";
import { ConversationError } from "./conversation-error.ts";
import type { Limits } from "./limits.ts";

export type Constraint = {
  /** Name of the request's field that sets the constraint. */
  param: string;
  format: StructuralTagFormat;
  /** Control tokens that the grammar sees as text. */
  markers?: readonly string[];
  /** Schemas that the grammar must enforce completely; otherwise the request is rejected. */
  strict?: readonly unknown[];
};

/** Returns a constraint to JSON documents that match the schema. */
export function jsonDocument(schema: Record<string, unknown> | boolean): Omit<Constraint, "param"> {
  return { format: { type: "json_schema", json_schema: schema }, strict: [schema] };
}

/** Returns the constraint as a grammar over the tokens of a model. */
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

/** Rejects `ignoreEos` and `minTokens`: under a constraint, the grammar alone decides when an answer ends. */
export function checkEnd({ ignoreEos, minTokens = 0 }: Limits, { param }: Constraint): void {
  const other = ignoreEos ? "ignoreEos" : minTokens > 0 ? "minTokens" : undefined;
  if (other !== undefined) throw new ConversationError(other, `not allowed together with ${param}`);
}
