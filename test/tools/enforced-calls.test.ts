// What each format's grammar allows, drawn at random from it: every call is returned while it is read, and turns out
// to be what it was returned as.
import { describe, expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { GrammarMatcher } from "@mlc-ai/web-xgrammar";
import { enforcedCalls } from "../../src/conversation/tool-use.ts";
import { Compiler } from "../../src/grammar/compiler.ts";
import { openTextModel } from "../../src/text/text-model.ts";
import { harmony } from "../../src/tools/formats/harmony.ts";
import { messageParser } from "../../src/tools/message.ts";
import type { Tool, ToolFormat } from "../../src/tools/syntax/format.ts";
import { writeChatModel } from "../support/chat-model.ts";
import { makeRandom, type Random } from "../support/random.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";
import { allFormats } from "./all-formats.ts";
import { Assembly } from "./messages.ts";

const tools: readonly Tool[] = [
  {
    name: "write",
    parameters: {
      type: "object",
      properties: {
        text: { type: "string" },
        any: {},
        count: { type: ["integer", "null"] },
        kind: { enum: ["a", "b c", 5] },
        tags: { type: "array", items: { type: "string" } },
        place: { type: "object", properties: { lat: { type: "number" } }, required: ["lat"] },
      },
      required: ["text", "any"],
    },
  },
  {
    name: "set.light-1",
    parameters: {
      type: "object",
      properties: { on: { type: "boolean" }, level: { type: "number" } },
      additionalProperties: false,
    },
  },
  { name: "now", parameters: {} },
];

/** Tokens that end what random bytes would not end. */
const ends = [
  ...['"', '",', '"}', "}", "}}", "]", "null", "{}", "0", "-1.50", "\\u00e9", "\\", "\n"],
  ...["</parameter>", "</｜DSML｜parameter>", "</arg_value>", "<escape>", '<|"|>', "`"],
  ...["\n</function>\n</", "\n</invoke>", "</｜DSML｜invoke>", "<|end|>", "</tool_call>"],
];
const FIRST_END = 259;
const STOP = FIRST_END + ends.length;

const folder = temporaryFolder();
writeChatModel(folder);
const file = join(folder, "tokenizer.json");
const written = JSON.parse(readFileSync(file, "utf8"));
written.added_tokens.push(
  ...ends.map((content, i) => ({ id: FIRST_END + i, content, special: false })),
  { id: STOP, content: "<stop>", special: true },
);
writeFileSync(file, JSON.stringify(written));
const { tokenizer } = openTextModel(folder);
const compiler = new Compiler(2 ** 30);

/** The text of a whole answer that begins with `start`; undefined if it does not come to an end. */
async function draw(
  matcher: GrammarMatcher,
  start: string,
  random: Random,
): Promise<string | undefined> {
  matcher.reset();
  for (const char of start) expect(matcher._acceptString(char)).toBe(true);
  const drawn: number[] = [];
  for (let count = 0; count < 400; count++) {
    const mask = await matcher.getNextTokenBitmask();
    const allowed = Array.from({ length: STOP + 1 }, (_, id) => id).filter(
      (id) => (mask[id >> 5]! >>> (id & 31)) & 1,
    );
    if (allowed.length === 0) return undefined;
    const ending = allowed.filter((id) => id >= FIRST_END);
    const from = ending.length > 0 && random.chance(0.7) ? ending : allowed;
    const token = from.includes(STOP) ? STOP : from[random.below(from.length)]!;
    if (token === STOP) return start + tokenizer.decode(Uint32Array.from(drawn));
    expect(matcher.acceptToken(token)).toBe(true);
    drawn.push(token);
  }
  return undefined;
}

/** The whole message, in pieces of random lengths, each as long as a token may be. */
function readPieces(
  format: ToolFormat,
  enforced: ReturnType<typeof enforcedCalls>,
  text: string,
  random: Random,
) {
  const parser = messageParser({ thinking: "none", format, tools, enforced });
  const message = new Assembly();
  const characters = Array.from(text);
  while (characters.length > 0) {
    message.add(parser.push(characters.splice(0, 1 + random.below(4)).join("")));
  }
  message.add(parser.end(false));
  return message;
}

function beforeCall(format: ToolFormat): string {
  if (format !== harmony) return "Well.\n";
  return "<|channel|>analysis<|message|>Well.<|end|><|start|>assistant";
}

describe("calls drawn from the grammar of", () => {
  for (const [seed, format] of allFormats.entries()) {
    test(format.name, async () => {
      const random = makeRandom(seed + 1);
      let calls = 0;
      for (const required of [true, false]) {
        const grammar = format.grammar(tools, { required, parallel: false });
        if (!grammar) continue;
        const constraint = { param: "tools", format: grammar };
        const enforced = enforcedCalls(undefined, { constraint, tools, isRequired: required });
        const compiled = await compiler.compile({
          vocabulary: { path: folder, size: STOP + 1, stopTokens: [STOP], markers: [] },
          format: JSON.stringify(grammar),
          strict: [],
        });
        const matcher = await GrammarMatcher.createGrammarMatcher(compiled, [STOP]);
        const start = required ? "" : `${beforeCall(format)}${enforced[0]}`;
        for (let i = 0; i < 6; i++) {
          const text = await draw(matcher, start, random);
          if (text === undefined) continue;
          const { parts, open } = readPieces(format, enforced, text, random);
          const [call, ...others] = parts.slice(required ? 0 : 1);
          expect({ text, call, others, open }).toEqual({
            text,
            call: {
              kind: "call",
              name: expect.stringMatching(/^(write|set\.light-1|now)$/),
              arguments: expect.any(String),
              ...(format.name === "kimi" && { id: expect.any(String) }),
            },
            others: [],
            open: undefined,
          });
          if (call?.kind === "call") expect(JSON.parse(call.arguments)).toBeObject();
          calls += 1;
        }
        matcher.dispose();
      }
      expect(calls).toBeGreaterThan(1);
    });
  }
});
