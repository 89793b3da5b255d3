// Parsing of request fields: null counts as absent, and a long array reports only its first invalid item.
import { z } from "zod";

/** Makes a field optional; null, which some clients send instead, counts as absent. */
export function optional<T extends z.ZodType>(field: T) {
  return z.preprocess(nullAsAbsent, field.optional());
}

export function withDefault<T extends z.ZodType<string | number | boolean>>(
  field: T,
  value: z.output<T>,
) {
  return z.preprocess(nullAsAbsent, field.default(value as z.util.NoUndefined<z.output<T>>));
}

const nullAsAbsent = (value: unknown) => value ?? undefined;

/** Any object, with all its keys: zod's records would drop a key named `__proto__`. */
export const anyObject = z
  .unknown()
  .transform((value, context): Record<string, unknown> => {
    if (typeof value === "object" && value !== null && !Array.isArray(value)) {
      return value as Record<string, unknown>;
    }
    context.addIssue({ code: "invalid_type", expected: "object", input: value });
    return z.NEVER;
  })
  .meta({ type: "object" });

/** Rejects an unsupported field of OpenAI's API, since ignoring it would mislead the client. */
export const refused = z
  .unknown()
  .refine((value) => value === undefined || value === null, {
    message: "not supported",
    params: { code: "unsupported_parameter" },
  })
  .optional()
  .meta({ type: "null", description: "Not supported: must be null." });

/** Accepts an array of `min` to `max` items. */
export function list<T extends z.ZodType>(item: T, max: number, min = 0) {
  return z.preprocess(cutAtFault(item, max), z.array(item).min(min).max(max));
}

/** Accepts a string, or an array of `min` to `max` items. */
export function stringOrList<S extends z.ZodString, T extends z.ZodType>(
  string: S,
  item: T,
  { max, min = 0, error }: { max: number; min?: number; error: string },
) {
  const array = z.array(item).min(min).max(max);
  return z.preprocess(cutAtFault(item, max), z.union([string, array], { error }));
}

/** Maximum errors reported per array; zod takes a second to create a million of them. */
const MAX_FAULTS = 64;

/** Cuts a long array after its first invalid item, so that zod reports few errors. */
function cutAtFault(item: z.ZodType, max: number) {
  return (value: unknown, context: z.RefinementCtx) => {
    if (!Array.isArray(value)) return value;
    if (value.length > max) {
      context.addIssue(`expected at most ${max} elements`);
      return z.NEVER;
    }
    if (value.length <= MAX_FAULTS) return value;
    const wrong = value.findIndex((each) => !item.safeParse(each).success);
    return wrong < 0 ? value : value.slice(0, wrong + 1);
  };
}
