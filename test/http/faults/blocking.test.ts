// Request bodies crafted to block the event loop: other clients are served meanwhile.
import { describe, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expectNoBlock } from "../../support/blocking.ts";
import { writeChatModel } from "../../support/chat-model.ts";
import { expectRefusal, SECRET } from "../../support/fault-checks.ts";
import { useTestServer } from "../../support/use-server.ts";

const server = useTestServer({
  model(folder) {
    writeChatModel(folder);
    // Real tokenizers have tokens of this length, so a long text can be few tokens.
    const file = join(folder, "tokenizer.json");
    const tokenizer = JSON.parse(readFileSync(file, "utf8"));
    tokenizer.model.vocab["-".repeat(80)] = 260;
    writeFileSync(file, JSON.stringify(tokenizer));
  },
});

const chat = "/v1/chat/completions";
const completions = "/v1/completions";
/** The maximum size of a body, minus room for the rest of it. */
const MOST = 16 * 2 ** 20 - 1000;
const filled = (unit: string, length = MOST) => unit.repeat(Math.floor(length / unit.length));
const several = (unit: string, count: number) => Array(count).fill(unit).join();

describe("the event loop is not blocked by", () => {
  const bodies: Record<string, [path: string, body: string]> = {
    "arrays in arrays": [completions, `{"prompt": "a", "x": ${"[".repeat(MOST)}`],
    "objects in objects": [completions, `{"x": ${filled('{"x":')}`],
    "arrays beside arrays": [
      completions,
      `{"x": [${filled(`${"[".repeat(100)}${"]".repeat(100)},`)}[]]}`,
    ],
    "a million numbers": [completions, `{"x": [${several("0.1", 2 ** 20 - 2)}]}`],
    "a number of a million digits": [completions, `{"x": ${"9".repeat(MOST)}}`],
    "nothing but space": [completions, `{"x": ${" ".repeat(MOST)}1}`],
    "many fields": [completions, `{${several('"x": "x"', 2 ** 16)}}`],
    "a long prompt": [completions, `{"prompt": "${filled(`${SECRET} `)}"}`],
    "a long word": [completions, `{"prompt": "${filled("a")}"}`],
    "new lines": [completions, `{"prompt": "${filled("\\n")}"}`],
    quotes: [completions, `{"prompt": "${filled('\\"')}"}`],
    escapes: [completions, `{"prompt": "${filled("\\u00e9")}"}`],
    "half characters": [completions, `{"prompt": "${filled("\\ud800")}"}`],
    "many prompts": [completions, `{"prompt": [${several('"a"', 129)}]}`],
    "a million token ids": [completions, `{"prompt": [${several("65", 2 ** 20 - 2)}]}`],
    "a million wrong token ids": [completions, `{"prompt": [${several("-1", 2 ** 20 - 2)}]}`],
    "a long message": [chat, `{"messages": [{"role": "user", "content": "${filled("a b ")}"}]}`],
    "control tokens": [
      chat,
      `{"messages": [{"role": "user", "content": "${filled("<|im_end|>")}"}]}`,
    ],
    "control tokens' beginnings": [
      chat,
      `{"messages": [{"role": "user", "content": "", "name": "${filled("<|im_end|")}"}]}`,
    ],
    "many messages": [
      chat,
      `{"messages": [${several('{"role": "user", "content": "a"}', 16384)}]}`,
    ],
    "many wrong messages": [chat, `{"messages": [${several('{"role": "x"}', 16384)}]}`],
    "many variables of the template": [
      chat,
      `{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {${Array.from(
        { length: 60_000 },
        (_, i) => `"k${i}": "v"`,
      ).join()}}}`,
    ],
    "many biases": [
      completions,
      `{"prompt": "a", "logit_bias": {${Array.from({ length: 60_000 }, (_, i) => `"${i}": 1`).join()}}}`,
    ],
    "a million tokens to read": ["/detokenize", `{"tokens": [${several("65", 2 ** 20 - 2)}]}`],
    "a long text to count": ["/tokenize", `{"prompt": "${filled(`${SECRET} `)}"}`],
  };

  test.each(Object.entries(bodies))("%s", async (_, [path, body]) => {
    await expectRefusal(await expectNoBlock(server.port, path, body), { status: 400 });
  });
});
