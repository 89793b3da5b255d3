// Texts and token ids in requests for completions, embeddings and the tokenizer. Parsed by hand: zod takes 0.25 µs for
// each of up to a million ids, and its errors for unions are vague.
import { z } from "zod";

/** A text, or its token ids. */
export type Prompt = string | number[];

/** Maximum token id, since the engine gets ids as 32-bit integers. */
const MAX_ID = 0xffff_ffff;

export const TokenId = z.int().min(0).max(MAX_ID);

const idsJson = { type: "array" as const, items: { type: "integer" as const, minimum: 0 } };

export const TokenIds = z
  .unknown()
  .transform((value, context): number[] => {
    if (!Array.isArray(value)) return wrong(context, value, "expected an array of token ids");
    return readIds(value, context, []) ?? z.NEVER;
  })
  .meta(idsJson);

/** Accepts one text, one array of token ids, or an array of up to `max` of either; returns an array of prompts. */
export function prompts(max: number) {
  const several = { minItems: 1, maxItems: max };
  const text = { type: "string" as const, minLength: 1 };
  const ids = { ...idsJson, minItems: 1 };
  return z
    .unknown()
    .transform((value, context): Prompt[] => readPrompts(value, context, max))
    .meta({
      anyOf: [
        text,
        { type: "array", items: text, ...several },
        ids,
        { type: "array", items: ids, ...several },
      ],
    });
}

/** Accepts a text, or up to `max` texts, for APIs without token ids. */
export function texts(max: number) {
  const text = { type: "string" as const, minLength: 1 };
  return prompts(max)
    .refine(
      (given: Prompt[]): given is string[] => given.every((each) => typeof each === "string"),
      "expected a string or strings",
    )
    .meta({ anyOf: [text, { type: "array", items: text, minItems: 1, maxItems: max }] });
}

function readPrompts(value: unknown, context: z.RefinementCtx, max: number): Prompt[] {
  if (typeof value === "string") {
    return value === "" ? wrong(context, value, "expected a text that is not empty") : [value];
  }
  const kinds = "expected a string, strings, token ids or arrays of token ids";
  if (!Array.isArray(value)) return wrong(context, value, kinds);
  const [first] = value;
  if (first === undefined) return wrong(context, value, "expected an array that is not empty");
  if (typeof first === "number") {
    const ids = readIds(value, context, []);
    return ids ? [ids] : z.NEVER;
  }
  if (value.length > max) return wrong(context, value, `expected at most ${max} elements`);
  for (const [at, each] of value.entries()) {
    const path = [at];
    if (typeof each !== typeof first) return wrong(context, each, "expected one kind only", path);
    if (typeof each !== "string" && !Array.isArray(each)) return wrong(context, each, kinds, path);
    if (each.length === 0) return wrong(context, each, "expected what is not empty", path);
    if (Array.isArray(each) && !readIds(each, context, path)) return z.NEVER;
  }
  return value;
}

/** Returns the array if all elements are token ids; otherwise adds an issue and returns undefined. */
function readIds(ids: unknown[], context: z.RefinementCtx, path: number[]): number[] | undefined {
  const at = ids.findIndex((id) => !isTokenId(id));
  if (at < 0) return ids as number[];
  wrong(context, ids[at], "expected a token id: an integer from 0", [...path, at]);
}

function isTokenId(id: unknown): boolean {
  return Number.isInteger(id) && (id as number) >= 0 && (id as number) <= MAX_ID;
}

function wrong(
  context: z.RefinementCtx,
  input: unknown,
  message: string,
  path: number[] = [],
): never {
  // A missing parameter gets the issue that zod itself would add: errors.ts recognizes it as a missing parameter.
  if (input === undefined) context.addIssue({ code: "invalid_type", expected: "array", input });
  else context.addIssue({ code: "custom", message, path, input });
  return z.NEVER;
}
