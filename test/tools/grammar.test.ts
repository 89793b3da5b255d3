// Each format's grammar, with the real xgrammar: it accepts the format's own calls, which the parser reads
// back, and rejects invalid ones.
import { describe, expect, test } from "bun:test";
import {
  GrammarCompiler,
  GrammarMatcher,
  type StructuralTagFormat,
  TokenizerInfo,
} from "@mlc-ai/web-xgrammar";
import { functionGemma, gemma4 } from "../../src/tools/formats/function-gemma.ts";
import { glm } from "../../src/tools/formats/glm.ts";
import { harmony } from "../../src/tools/formats/harmony.ts";
import { hermes } from "../../src/tools/formats/hermes.ts";
import { deepseekV32, minimax } from "../../src/tools/formats/invoke.ts";
import { kimi } from "../../src/tools/formats/kimi.ts";
import { llamaJson } from "../../src/tools/formats/llama-json.ts";
import { mistral } from "../../src/tools/formats/mistral.ts";
import { pythonic } from "../../src/tools/formats/pythonic.ts";
import { qwenXml } from "../../src/tools/formats/qwen-xml.ts";
import { withThought } from "../../src/tools/reasoning.ts";
import type { Call, GrammarOptions, ToolFormat } from "../../src/tools/syntax/format.ts";
import { allFormats } from "./all-formats.ts";
import { expectRead, read, tools } from "./messages.ts";

const vocabulary = [
  ...Array.from({ length: 95 }, (_, i) => String.fromCharCode(32 + i)),
  "\n",
  "é",
];
const STOP = vocabulary.length;
const all = [...vocabulary, "<stop>"];
const info = await TokenizerInfo.createTokenizerInfo(all, "raw", false, all.length, [STOP]);
const compiler = await GrammarCompiler.createGrammarCompiler(info, false);

/** Which of these texts are whole answers. */
async function accepted(
  grammar: StructuralTagFormat,
  texts: readonly string[],
): Promise<boolean[]> {
  const compiled = await compiler.compileStructuralTag(grammar);
  const matcher = await GrammarMatcher.createGrammarMatcher(compiled);
  const results = texts.map((text) => {
    matcher.reset();
    return (
      Array.from(text).every((char) => matcher._acceptString(char)) && matcher.acceptToken(STOP)
    );
  });
  matcher.dispose();
  compiled.dispose();
  return results;
}

const given = {
  city: "Zürich".replace("ü", "é"),
  days: 3,
  hourly: true,
  unit: "kelvin",
  tags: ["a", "b c"],
  place: { lat: 1.5, lon: -2 },
};
const weather: Call = { name: "get_weather", arguments: JSON.stringify(given) };
const brief: Call = { name: "get_weather", arguments: '{"city":"Paris"}' };
const now: Call = { name: "now", arguments: "{}" };
const note: Call = { name: "note", arguments: '{"text":"{}[]()<b> \'c\'","count":null}' };
const wrong: Call[] = [
  { name: "get_whether", arguments: '{"city":"Paris"}' },
  { name: "get_weather", arguments: "{}" },
  { name: "get_weather", arguments: '{"city":"Paris","days":"three"}' },
  { name: "get_weather", arguments: '{"city":"Paris","days":1.5}' },
  { name: "get_weather", arguments: '{"city":"Paris","unit":"miles"}' },
  { name: "get_weather", arguments: '{"city":"Paris","hours":5}' },
  { name: "get_weather", arguments: '{"city":"Paris","place":{"lat":1}}' },
  { name: "now", arguments: '{"city":"Paris"}' },
];

function grammarOf(format: ToolFormat, options: GrammarOptions): StructuralTagFormat {
  const grammar = format.grammar(tools, options);
  if (!grammar) throw new Error(`${format.name} has no grammar`);
  return grammar;
}

const free = allFormats.filter((format) => format !== llamaJson && format !== pythonic);

for (const format of allFormats) {
  describe(format.name, () => {
    const singles = [weather, brief, now, note];
    const one = singles.map((call) => format.write([call]));
    const several = format.write([weather, now, note]);
    // A call ends gpt-oss's answer.
    const isAlone = format === harmony;

    test("reads back what it writes", () => {
      for (const call of singles) {
        const [part, ...others] = read(format, format.write([call]));
        expect(others).toEqual([]);
        expect(part).toMatchObject({ kind: "call", name: call.name });
        const { arguments: text } = part as Call;
        expect(JSON.parse(text)).toEqual(JSON.parse(call.arguments));
      }
      const names = ["get_weather", "now", "note"].map((name) => ({ name }));
      expect(read(format, several)).toMatchObject(names);
    });

    test("required: accepts calls and nothing else", async () => {
      for (const parallel of [true, false]) {
        const grammar = grammarOf(format, { required: true, parallel });
        expect(await accepted(grammar, one)).toEqual(one.map(() => true));
        expect(await accepted(grammar, [several])).toEqual([parallel && !isAlone]);
        const others = ["", "Hello.", `Well: ${one[0]}`, `${one[0]} Done.`, one[0]!.slice(0, -1)];
        expect(await accepted(grammar, others)).toEqual(others.map(() => false));
      }
    });

    test("rejects calls that do not match their schema", async () => {
      const texts = wrong.map((call) => format.write([call]));
      for (const required of [true, false]) {
        const grammar = format.grammar(tools, { required, parallel: true });
        if (grammar) expect(await accepted(grammar, texts)).toEqual(texts.map(() => false));
      }
    });

    test("has no grammar without tools", () => {
      expect(format.grammar([], { required: true, parallel: true })).toBeUndefined();
      expect(format.grammar([], { required: false, parallel: true })).toBeUndefined();
    });

    if (!free.includes(format)) {
      test("has no grammar if the answer may be text", () => {
        expect(format.grammar(tools, { required: false, parallel: true })).toBeUndefined();
      });
      return;
    }

    test("accepts text, and calls in it", async () => {
      for (const parallel of [true, false]) {
        const grammar = grammarOf(format, { required: false, parallel });
        const texts = ["", "Hello < [ { é\n", ...one, `Well:\n${one[0]}`];
        expect(await accepted(grammar, texts)).toEqual(texts.map(() => true));
        expect(await accepted(grammar, [several])).toEqual([parallel && !isAlone]);
      }
    });
  });
}

test("arguments are an object even if the schema does not say so", async () => {
  const grammar = hermes.grammar([{ name: "f", parameters: {} }], {
    required: true,
    parallel: false,
  });
  const texts = ["{}", '{"a": 1}', "[]"].map((given) =>
    hermes.write([{ name: "f", arguments: given }]),
  );
  expect(await accepted(grammar!, texts)).toEqual([true, true, false]);
});

test("a tool's name may begin with another's", async () => {
  const parameters = { type: "object", properties: { a: { type: "integer" } } };
  const [short, long] = ["get", "get_all"].map((name) => ({ name, parameters }));
  for (const format of allFormats) {
    const grammar = format.grammar([short!, long!], { required: true, parallel: false });
    const texts = ["get", "get_all", "get_a"].flatMap((name) =>
      ["{}", '{"a":1}'].map((given) => format.write([{ name, arguments: given }])),
    );
    const expected = [true, true, true, true, false, false];
    expect([format.name, await accepted(grammar!, texts)]).toEqual([format.name, expected]);
  }
});

test("an argument's schema may refer to the tool's definitions", async () => {
  const parameters = {
    type: "object",
    properties: { at: { $ref: "#/$defs/hour" } },
    required: ["at"],
    $defs: { hour: { type: "integer", maximum: 23 } },
  };
  for (const format of [hermes, pythonic]) {
    const grammar = format.grammar([{ name: "f", parameters }], { required: true, parallel: true });
    const texts = ['{"at":23}', '{"at":24}'].map((given) =>
      format.write([{ name: "f", arguments: given }]),
    );
    expect(await accepted(grammar!, texts)).toEqual([true, false]);
  }
});

test("strings between tags may have several lines", async () => {
  const ends: [ToolFormat, string][] = [
    [qwenXml, "</parameter>"],
    [minimax, "</parameter>"],
    [deepseekV32, "</｜DSML｜parameter>"],
    [glm, "</arg_value>"],
  ];
  for (const [format, end] of ends) {
    const grammar = grammarOf(format, { required: true, parallel: false });
    const texts = ["a < b\n\n</p>\n", `a${end}b`].map((text) =>
      format.write([{ name: "note", arguments: JSON.stringify({ text }) }]),
    );
    expect(await accepted(grammar, texts)).toEqual([true, false]);
  }
});

test("a value is one of those listed in its schema", async () => {
  const properties = { one: { const: "a" }, some: { enum: ["", "b", 5, null] } };
  const parameters = { type: "object", properties, required: ["one", "some"] };
  const given = [
    { one: "a", some: "" },
    { one: "a", some: 5 },
    { one: "a", some: null },
    { one: "b", some: "b" },
    { one: "a", some: "c" },
  ];
  const formats = [hermes, qwenXml, functionGemma, gemma4, pythonic, glm, minimax, deepseekV32];
  for (const format of formats) {
    const grammar = format.grammar([{ name: "f", parameters }], { required: true, parallel: true });
    const texts = given.map((each) =>
      format.write([{ name: "f", arguments: JSON.stringify(each) }]),
    );
    expect(await accepted(grammar!, texts)).toEqual([true, true, true, false, false]);
  }
});

test("Gemma's numbers have no leading zeros", async () => {
  for (const format of [functionGemma, gemma4]) {
    const parameters = { type: "object", properties: { any: {} } };
    const grammar = format.grammar([{ name: "f", parameters }], {
      required: true,
      parallel: false,
    });
    const texts = ["0", "-10.05", "007"].map((text) =>
      format.write([{ name: "f", arguments: '{"any": 1}' }]).replace("1", text),
    );
    expect(await accepted(grammar!, texts)).toEqual([true, true, false]);
  }
});

test("Mistral may write a call's id", async () => {
  const grammar = grammarOf(mistral, { required: true, parallel: true });
  const text = "[TOOL_CALLS]now[CALL_ID]abc123XYZ[ARGS]{}";
  expect(await accepted(grammar, [text])).toEqual([true]);
});

test("Kimi numbers its calls as it likes", async () => {
  const grammar = grammarOf(kimi, { required: true, parallel: true });
  const texts = ["12", "", "a"].map((index) => kimi.write([now]).replace(":0", `:${index}`));
  expect(await accepted(grammar, texts)).toEqual([true, false, false]);
});

test("DeepSeek tells strings from other values as their schema does", async () => {
  const properties = { text: { type: "string" }, any: {}, either: { type: ["string", "null"] } };
  const grammar = deepseekV32.grammar([{ name: "f", parameters: { properties } }], {
    required: true,
    parallel: false,
  });
  const given = ['{"text": "a"}', '{"text": 5}', '{"any": "a"}', '{"any": [5]}'];
  const more = ['{"either": "a"}', '{"either": null}', '{"either": 5}'];
  const texts = [...given, ...more].map((each) =>
    deepseekV32.write([{ name: "f", arguments: each }]),
  );
  expect(await accepted(grammar!, texts)).toEqual([true, false, true, true, true, true, false]);
});

test("gpt-oss may think before a call that is required", async () => {
  const grammar = grammarOf(harmony, { required: true, parallel: true });
  const thought = "<|channel|>analysis<|message|>So.<|end|>";
  const call = harmony.write([brief]);
  const texts = [`${thought}<|start|>assistant${call}`, thought, `${thought}${call}`];
  expect(await accepted(grammar, texts)).toEqual([true, false, false]);
});

test("gpt-oss's calls fit their schema wherever it names them", async () => {
  const grammar = grammarOf(harmony, { required: false, parallel: true });
  const thought = "<|channel|>analysis<|message|>So.<|end|>";
  const text = (inner: string) =>
    `${thought}<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>${inner}`;
  const answer = `${thought}<|start|>assistant<|channel|>final<|message|>Sunny.`;
  const texts = [text('{"city": "Paris"}'), text("{}"), answer];
  expect(await accepted(grammar, texts)).toEqual([true, false, true]);
});

describe("a thought before an answer", () => {
  const call = hermes.write([brief]);
  const required = grammarOf(hermes, { required: true, parallel: true });
  const auto = grammarOf(hermes, { required: false, parallel: true });

  test("may be there, with anything in it", async () => {
    const grammar = withThought(required, "possible");
    const texts = [
      call,
      `<think>\n<tool_call> or?\n</think>\n\n${call}`,
      "<think>",
      "<think>a</think>",
    ];
    expect(await accepted(grammar, texts)).toEqual([true, true, false, false]);
    const free = [`<think><tool_call> or?</think>Hello`, "Hello", "<tool_call> or?"];
    expect(await accepted(withThought(auto, "possible"), free)).toEqual([true, true, false]);
  });

  test("that has begun must end", async () => {
    const texts = [`<tool_call> or?</think>\n${call}`, call];
    expect(await accepted(withThought(required, "begun"), texts)).toEqual([true, false]);
    expect(await accepted(withThought(auto, "begun"), texts)).toEqual([true, false]);
  });

  test("is nothing to a model that does not think", () => {
    expect(withThought(required, "none")).toBe(required);
  });
});

test("harmony holds an answer's text to a form behind its head, with a thought before it or none", async () => {
  const form = harmony.wrapText!({ type: "const_string", value: "yes" });
  const final = "<|channel|>final<|message|>yes";
  const thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
  expect(await accepted(form, [final, thought + final, "yes", `${final} no`])).toEqual([
    true,
    true,
    false,
    false,
  ]);
  expectRead(harmony, thought + final, [
    { kind: "reasoning", text: "Hm." },
    { kind: "content", text: "yes" },
  ]);
});
