// Attacks by load: slow grammars, long prompts, and many requests.
import { type Attack, abandon, chat, completions, endless, post, question } from "./attack.ts";

/** A schema that compiles slowly; each number gives a new one. */
function heavySchema(number: number): object {
  const fields = Array.from({ length: 40 }, (_, i) => [
    `field_${number}_${i}`,
    { type: "string", pattern: `^[a-z${i}]{1,${60 + (number % 20)}}([0-9]{2,30}|[A-Z]{1,30})$` },
  ]);
  return { type: "object", properties: Object.fromEntries(fields), additionalProperties: false };
}

const constrained = (schema: object) => ({
  ...question("Fill in the form."),
  response_format: { type: "json_schema", json_schema: { name: "form", schema } },
});

const hostilePatterns = [
  "^(a+)+$",
  "^(a|a)*b$",
  "(x{1,1000}){1,1000}",
  "^[a-z]{0,100000}$",
  "(?=a)b",
  "(",
];

const words = "The harbour was quiet, and the boats lay side by side. ";

export const workAttacks: Attack[] = [
  {
    name: "grammars that are abandoned",
    async run(target, random) {
      const first = random.below(1_000_000);
      const requests = Array.from({ length: 30 }, (_, i) => ({
        path: chat,
        body: constrained(heavySchema(first + i)),
      }));
      await abandon(target, requests, 500);
      await Bun.sleep(3000);
    },
  },
  {
    name: "schemas and patterns without end",
    async run(target) {
      const recursive = { $ref: "#/$defs/a", $defs: { a: { anyOf: [{ $ref: "#/$defs/a" }] } } };
      const wide = { enum: Array.from({ length: 20_000 }, (_, i) => `value ${i}`) };
      const patterns = hostilePatterns.map((pattern) => ({ type: "string", pattern }));
      for (const schema of [recursive, wide, ...patterns]) {
        const response = await post(target, chat, constrained(schema));
        await response.arrayBuffer();
        if (response.status >= 500)
          throw new Error(`${JSON.stringify(schema)}: ${response.status}`);
      }
    },
  },
  {
    name: "long prompts with all their log-probabilities",
    async run(target, random) {
      const requests = Array.from({ length: 8 }, (_, i) => ({
        path: "/v1/batch/completions",
        body: {
          prompt: `${random.below(1e9)} ${words.repeat(225)}`,
          max_tokens: 1,
          ...(i % 2 === 0 && { echo: true, logprobs: 5 }),
        },
      }));
      await abandon(target, requests, 8000);
    },
  },
  {
    name: "more requests than the queue holds",
    async run(target) {
      const body = { ...endless, max_tokens: 200 };
      const requests = Array.from({ length: 1200 }, () => ({ path: completions, body }));
      await abandon(target, requests, 3000);
    },
  },
];
