// Checks sampling against plain arithmetic, and answers that are constrained by a grammar.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import type { EngineClient } from "../engine/client.ts";
import type { Sampling } from "../engine/protocol.ts";
import type { Grammar } from "../grammar/grammar.ts";
import { Grammars } from "../grammar/grammars.ts";
import { unitNumber } from "../model/run/sampler.ts";
import { BYTE_CHARS } from "../text/tokenizer/pre-tokenizer.ts";
import type { Finding } from "./check.ts";
import { answersOf, type EngineCheck, requestOf, sameTokens, withModel } from "./engine-checks.ts";
import { tinyModel } from "./tiny-models.ts";

export function samplingChecks(): EngineCheck[] {
  return [
    { name: "sampling: seeded draws of every kind, in one batch", run: checkDraws },
    { name: "sampling: penalties and biases", run: checkPenalties },
    { name: "grammar: beside answers without one", run: checkGrammars },
  ];
}

const DRAWS = 32;

const kinds: Record<string, Partial<Sampling>> = {
  "temperature 1": {},
  "temperature 0.5": { temperature: 0.5 },
  "top_k 5": { topK: 5 },
  "top_p 0.7": { topP: 0.7 },
  "min_p 0.1": { minP: 0.1 },
  "all of them": { temperature: 1.3, topK: 20, topP: 0.9, minP: 0.02 },
};

/** Checks the tokens that one step draws from known logits. */
async function checkDraws(engine: EngineClient): Promise<Finding[]> {
  const model = tinyModel("llama");
  return await withModel(engine, model, {}, async () => {
    const drawn = Object.entries(kinds).map(async ([what, more], i) => {
      const seed = 1000 * i;
      const sampling = { temperature: 1, seed, ...more };
      const request = requestOf(model, { n: DRAWS, maxTokens: 1, sampling });
      const answers = await answersOf(engine, model.name, request);
      const expected = answers.map((_, answer) =>
        plainDraw(model.last, sampling, unitNumber(seed + answer, 0)),
      );
      // Leaves out random numbers very close to the boundary between two tokens, which may draw either token.
      const clear = [...expected.keys()].filter((answer) => expected[answer] !== undefined);
      return sameTokens(
        what,
        clear.map((answer) => answers[answer]!.tokens[0]!),
        clear.map((answer) => expected[answer]!),
      );
    });
    return await Promise.all(drawn);
  });
}

/** Returns the token that a random number draws; undefined if the number is close to drawing another token. */
function plainDraw(
  logits: readonly number[],
  { temperature, topK, topP = 1, minP = 0 }: Sampling,
  number: number,
): number | undefined {
  const most = Math.max(...logits);
  const weights = logits.map((x) => Math.exp((x - most) / temperature));
  const all = weights.reduce((sum, weight) => sum + weight, 0);
  const isTruncated = topK !== undefined || topP < 1 || minP > 0;
  const order = [...logits.keys()];
  if (isTruncated) order.sort((a, b) => weights[b]! - weights[a]!);
  const first = order.slice(0, topK ?? order.length).map((token) => weights[token]! / all);
  const sum = first.reduce((total, weight) => total + weight, 0);
  let before = 0;
  const kept = first.map((weight, rank) => {
    const isKept = before < topP * sum && weight >= minP * first[0]!;
    before += weight;
    return rank === 0 || isKept ? weight : 0;
  });
  const threshold = number * kept.reduce((total, weight) => total + weight, 0);
  let cumulative = 0;
  for (const [rank, weight] of kept.entries()) {
    cumulative += weight;
    if (Math.abs(cumulative - threshold) < 1e-4) return undefined;
    if (cumulative > threshold) return order[rank];
  }
  return undefined;
}

async function checkPenalties(engine: EngineClient): Promise<Finding[]> {
  const model = tinyModel("llama");
  const { last, prompt, greedy } = model;
  const best = (logits: readonly number[]) => logits.indexOf(Math.max(...logits));
  const repeated = last.map((x, token) => (prompt.includes(token) ? (x > 0 ? x / 50 : x * 50) : x));
  return await withModel(engine, model, {}, async () => {
    const tokensOf = async (more: Partial<Sampling>, maxTokens: number) => {
      const request = requestOf(model, { maxTokens, sampling: { temperature: 0, ...more } });
      return (await answersOf(engine, model.name, request))[0]!.tokens;
    };
    const [biased, plain, penalized, varied, coldest] = await Promise.all([
      tokensOf({ logitBias: new Map([[17, 1000]]) }, 8),
      tokensOf({}, greedy.length),
      tokensOf({ repetitionPenalty: 50 }, 1),
      tokensOf({ presencePenalty: 1000 }, 40),
      tokensOf({ temperature: 1, topK: 1, seed: 5 }, 40),
    ]);
    return [
      sameTokens("a bias", biased, Array(8).fill(17)),
      sameTokens("none beside them", plain, greedy),
      sameTokens("a penalty on the prompt", penalized, [best(repeated)]),
      { what: "a penalty on the answer, tokens", worst: 40 - new Set(varied).size, most: 0 },
      sameTokens("the most likely alone", coldest, greedy.slice(0, 40)),
    ];
  });
}

/** Index of the stop token. */
const STOP = 0;

const formats = {
  "a regular expression": {
    format: { type: "regex", pattern: "(yes|no), [0-9]{3}!" },
    isMatch: (text: string) => /^(yes|no), [0-9]{3}!$/.test(text),
  },
  "a schema": {
    format: {
      type: "json_schema",
      json_schema: {
        type: "object",
        properties: { ok: { type: "boolean" }, kind: { enum: ["kernel", "model"] } },
        required: ["ok", "kind"],
        additionalProperties: false,
      },
    },
    isMatch: (text: string) => {
      const { ok, kind, ...others } = JSON.parse(text);
      const isKnown = kind === "kernel" || kind === "model";
      return typeof ok === "boolean" && isKnown && Object.keys(others).length === 0;
    },
  },
};

async function checkGrammars(engine: EngineClient): Promise<Finding[]> {
  const model = tinyModel("llama");
  const grammars = new Grammars();
  try {
    const check = async (path: string) => {
      const constrained = Object.entries(formats).map(async ([what, { format, isMatch }], i) => {
        const grammar: Grammar = {
          vocabulary: { path, size: model.last.length, stopTokens: [STOP], markers: [] },
          format: JSON.stringify(format),
          strict: [],
        };
        const grammarLane = await grammars.prepare(grammar, engine, { key: what, level: 0 });
        const sampling = { temperature: 1, seed: 100 * i };
        const stopTokens = [STOP];
        const more = { n: 4, maxTokens: 200, sampling, grammar, grammarLane, stopTokens };
        const answers = await answersOf(engine, model.name, requestOf(model, more));
        const wrong = answers.filter(({ tokens, finished }) => {
          const text = Buffer.from(tokens.filter((token) => token !== STOP)).toString();
          return finished !== "stop" || !isMatch(text);
        });
        return { what: `${what}, answers that do not match`, worst: wrong.length, most: 0 };
      });
      const free = await answersOf(engine, model.name, requestOf(model));
      return [
        ...(await Promise.all(constrained)),
        sameTokens("without one", free[0]!.tokens, model.greedy),
      ];
    };
    return await withModel(engine, model, {}, check, writeByteTokenizer);
  } finally {
    await grammars.stop();
  }
}

/** Writes a tokenizer in which each token is one byte. */
function writeByteTokenizer(folder: string): void {
  const vocab = Object.fromEntries(BYTE_CHARS.map((char, id) => [char, id]));
  const tokenizer = {
    model: { type: "BPE", vocab, merges: [] },
    pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, use_regex: true },
    decoder: { type: "ByteLevel" },
    added_tokens: [],
  };
  writeFileSync(join(folder, "tokenizer.json"), JSON.stringify(tokenizer));
}
