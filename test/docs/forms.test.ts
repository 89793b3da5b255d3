// The forms of .github, as GitHub requires them to be.
import { expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import * as z from "zod";
import { verbs } from "../../src/cli/verbs.ts";
import { root } from "./documents.ts";

const text = z.string().min(1);
const Field = z
  .strictObject({
    type: z.enum(["input", "textarea", "dropdown"]),
    id: z.string().regex(/^[\w-]+$/),
    attributes: z.strictObject({
      label: text,
      description: text.optional(),
      placeholder: text.optional(),
      render: text.optional(),
      options: z.array(text).min(2).optional(),
    }),
    validations: z.strictObject({ required: z.boolean() }).optional(),
  })
  .refine(({ type, attributes: { options } }) => (type === "dropdown") === (options !== undefined))
  .refine(({ type, attributes: { render } }) => type === "textarea" || render === undefined);
const Form = z.strictObject({
  name: text,
  description: text,
  labels: z.array(text),
  body: z.array(Field),
});

const folder = join(root, ".github/ISSUE_TEMPLATE");

test.each(readdirSync(folder))("the form %s can be filled in", (file) => {
  const source = readFileSync(join(folder, file), "utf8");
  const { body } = Form.parse(Bun.YAML.parse(source));
  expect(body.some(({ validations }) => validations?.required)).toBe(true);
  for (const values of [body.map(({ id }) => id), body.map((each) => each.attributes.label)]) {
    expect(new Set(values).size).toBe(values.length);
  }
  const named = Array.from(source.matchAll(/mlx-serve (?:-- )?([a-z]+)/g), ([, name]) => name);
  expect(named.filter((name) => !verbs.some((verb) => verb.name === name))).toEqual([]);
});

test("there are forms for a bug, a model and a feature, and one for changes", () => {
  expect(readdirSync(folder).toSorted()).toEqual(["bug.yml", "feature.yml", "model.yml"]);
  expect(readFileSync(join(root, ".github/pull_request_template.md"), "utf8")).toContain("## Why");
});
