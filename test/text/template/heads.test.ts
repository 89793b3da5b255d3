// The heads of chats: as many tokens as other chats that begin alike have in common with them.
import { describe, expect, test } from "bun:test";
import { promptBuilder } from "../../../src/text/prompt.ts";
import {
  type ChatInput,
  type ChatMessage,
  chatTemplate,
} from "../../../src/text/template/template.ts";
import { finish } from "../../../src/text/tokenizer/token-ids.ts";
import { tokenizerFromJson } from "../../../src/text/tokenizer/tokenizer.ts";
import type { TokenizerJson } from "../../../src/text/tokenizer/tokenizer-json.ts";
import { readGolden } from "../corpus.ts";

const sources = await readGolden<Record<string, string>>("templates.json");
const golden = async (name: string) =>
  (await readGolden<{ tokenizer: TokenizerJson }>(`${name}.json`)).tokenizer;
const byteLevel = await golden("byte-level");
const namedTokens = { bos_token: "<|begin_of_text|>", eos_token: "<|im_end|>" };

function encoderOf(source: string, json = byteLevel) {
  const template = chatTemplate({ jinja: source }, { namedTokens })!;
  let renderings = 0;
  const counted = {
    ...template,
    render: (input: ChatInput) => {
      renderings++;
      return template.render(input);
    },
  };
  const builder = promptBuilder(counted, tokenizerFromJson(json, {}));
  return (input: ChatInput, wantsHeads = true) => {
    renderings = 0;
    const ids: number[] = [];
    const work = { input, maxTokens: Infinity, wantsHeads };
    const { heads } = finish(builder.steps(work, ids));
    return { ids, heads, renderings };
  };
}

const message = (role: string) => (content: string) => ({ role, content });
const [system, user, assistant] = ["system", "user", "assistant"].map(message) as [
  ReturnType<typeof message>,
  ReturnType<typeof message>,
  ReturnType<typeof message>,
];
const chat = (...messages: ChatMessage[]): ChatInput => ({ messages, addGenerationPrompt: true });

const commonTokens = (one: readonly number[], other: readonly number[]) => {
  const parts = one.findIndex((id, i) => id !== other[i]);
  return parts < 0 ? one.length : parts;
};

const instructions = "You are a helpful assistant: 日本語 👩‍👩‍👧, and <|im_end|> is text. ".repeat(
  20,
);
const tools = ["weather", "time"].map((name) => ({
  type: "function",
  function: { name, description: "Of a city", parameters: { type: "object", properties: {} } },
}));
/** None of them begins like another. */
const lines = ["What is it?", "  How so?\n", "and why?", "\n\nUntil when?"];
const questions = [...lines, "日本?", "<|im_end|>", "42"];

const withoutSystem = new Set(["gemma"]);

describe.each(Object.keys(sources))("with the template %s", (name) => {
  const encode = encoderOf(sources[name]!);
  const opening = withoutSystem.has(name) ? [] : [system(instructions)];
  const turns = [user(instructions), assistant("Indeed. ".repeat(30))];

  test("the first head ends where other users' questions begin", () => {
    for (const given of [undefined, tools]) {
      const all = questions.map((text) =>
        encode({ ...chat(...opening, user(text)), tools: given }),
      );
      for (const one of all) {
        expect(one.heads).toHaveLength(1);
        const common = all
          .filter((each) => each !== one)
          .map(({ ids }) => commonTokens(one.ids, ids));
        // Fewer where what comes before a question is one token with its blanks.
        expect(Math.max(...common)).toBe(one.heads[0]!);
      }
    }
  });

  test("the last head ends where the last question begins, behind all turns", () => {
    const asked = (text: string, ...before: ChatMessage[]) =>
      encode(chat(...opening, ...before, user(text)));
    const { ids, heads } = asked("What is it?", ...turns, ...turns);
    const other = asked("How so?", ...turns, ...turns);
    expect(heads).toEqual([commonTokens(ids, asked("How so?").ids), commonTokens(ids, other.ids)]);
    expect(other.heads).toEqual(heads);
    expect(heads[1]!).toBeGreaterThan(heads[0]! + 100);
  });

  test("what follows the last question changes nothing", () => {
    const before = encode(chat(...opening, ...turns, user("What is it?")));
    const messages = [...opening, ...turns, user("What is it?"), assistant("It ")];
    const continued = encode({ messages, continueFinalMessage: true });
    expect(continued.heads).toEqual(before.heads);
  });
});

test("any tokenizer counts them, to a token, where a template writes no control tokens", async () => {
  const plain = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}";
  for (const name of ["llama", "unigram", "byte-level"]) {
    const encode = encoderOf(plain, await golden(name));
    const opening = [system("Be brief. ".repeat(200)), user("Hello there."), assistant("Hi.")];
    const [one, other] = ["What is it?", "How so?"].map((text) =>
      encode(chat(...opening, user(text))),
    ) as [ReturnType<typeof encode>, ReturnType<typeof encode>];
    const common = commonTokens(one.ids, other.ids);
    expect(common).toBeGreaterThan(200);
    expect(one.heads[1]).toBeWithin(common - 1, common + 1);
    const first = encode(chat(opening[0]!, user("Yes?")));
    const shared = commonTokens(one.ids, first.ids);
    expect(one.heads[0]).toBeWithin(shared - 1, shared + 1);
  }
});

test("a head ends before a token that others have only a part of", () => {
  for (const [here, there] of [
    ["<|im_end|>", "<|im_start|>"],
    ["the", "that"],
  ]) {
    const source = `<|im_start|>{{ '${here}' if messages[0].content == 'What?' else '${there}' }}`;
    const { ids, heads } = encoderOf(source)(chat(user("What?")));
    expect(ids.length).toBe(2);
    expect(heads).toEqual([1]);
  }
});

test("a chat that a template accepts only as it is has no heads", () => {
  const source =
    "{% if messages[-1].content != 'please' %}{{ raise_exception('no') }}{% endif %}{{ 'yes' }}";
  const { ids, heads } = encoderOf(source)(chat(user("please")));
  expect(heads).toEqual([]);
  expect(ids.length).toBeGreaterThan(0);
});

test("a chat without questions has no heads", () => {
  expect(encoderOf(sources.chatml!)(chat(system(instructions))).heads).toEqual([]);
});

test("a chat is rendered once where heads are not wanted, and once more for each otherwise", () => {
  const encode = encoderOf(sources.chatml!);
  const input = chat(system("Be brief."), user("Hi"), assistant("Hello."), user("Bye"));
  const plain = encode(input, false);
  expect(plain).toMatchObject({ heads: [], renderings: 1 });
  expect(encode(input)).toMatchObject({ ids: plain.ids, renderings: 3 });
  expect(encode(chat(user("Hi")))).toMatchObject({ renderings: 2 });
});
