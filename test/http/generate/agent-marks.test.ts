// What agents write into their prompts that means nothing, and changes with every request.
import { describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { writeChatModel } from "../../support/chat-model.ts";
import { editJson } from "../../support/dialect-model.ts";
import { startTestServer, type TestServer } from "../../support/server.ts";
import { useTestServer } from "../../support/use-server.ts";

const server = useTestServer();
const keeping = useTestServer({ args: ["--agent-marks"] });

const billing = (hash: string) =>
  `x-anthropic-billing-header: cc_version=2.1.197.${hash}; cc_entrypoint=sdk-cli; cch=${hash};`;
const left = (tokens: number | string) => `<total_tokens>${tokens} tokens left</total_tokens>`;
const text = (value: string) => ({ type: "text", text: value });
const head = "You help users with their software. ".repeat(4);

/** As Claude Code sends them: one more turn each time, and marks that change. */
function turn(number: number) {
  const system = [
    text(billing(`a${number}`)),
    text(head),
    text(`Be brief.\n\n${left(1e6 - number)}`),
  ];
  const turns = Array.from({ length: number }, (_, i) => [
    { role: "assistant", content: `Answer ${i}` },
    { role: "system", content: left(`${i}0${number}`) },
    { role: "user", content: [text(`Question ${i + 1}`), text(left(number))] },
  ]);
  const messages = [{ role: "user", content: "Question 0" }, ...turns.flat()];
  return { model: "default", max_tokens: 1, system, messages };
}

type Usage = { input_tokens: number; cache_read_input_tokens: number };
async function usages(to: TestServer, count: number): Promise<Usage[]> {
  const seen: Usage[] = [];
  for (let number = 0; number < count; number++) {
    const response = await to.post("/v1/messages", turn(number));
    expect(response.status).toBe(200);
    seen.push(((await response.json()) as { usage: Usage }).usage);
  }
  return seen;
}

describe("left out", () => {
  test("every turn hits all of the turn before but what a block cannot hold", async () => {
    const seen = await usages(server, 4);
    const lengths = seen.map((usage) => usage.input_tokens + usage.cache_read_input_tokens);
    // The header of the answer is where the next turn goes on.
    const hits = seen.slice(1).map((usage) => usage.cache_read_input_tokens);
    hits.forEach((hit, i) => {
      expect(hit).toBeGreaterThanOrEqual(lengths[i]! - 32 - "<|im_start|>assistant\n".length);
    });
  });

  test("counts are those of the prompt", async () => {
    const { max_tokens: _, ...counted } = turn(3);
    const count = await server.post("/v1/messages/count_tokens", counted);
    const [usage] = await usages(server, 4).then((all) => all.slice(-1));
    const { input_tokens } = (await count.json()) as Usage;
    expect(input_tokens).toBe(usage!.input_tokens + usage!.cache_read_input_tokens);
  });

  test("in every API, of the system only", async () => {
    const promptOf = async (messages: object[]) => {
      const response = await server.post("/tokenize", { messages });
      const { tokens } = (await response.json()) as { tokens: number[] };
      const back = await server.post("/detokenize", { tokens });
      return ((await back.json()) as { prompt: string }).prompt;
    };
    const marked = [
      { role: "system", content: `${billing("f")}\nBe kind.${left(7)}` },
      { role: "user", content: `What is ${left(5)}?` },
      { role: "developer", content: left("Infinite") },
      { role: "user", content: billing("e") },
    ];
    expect(await promptOf(marked)).toBe(
      "<|im_start|>system\nBe kind.<|im_end|>\n" +
        `<|im_start|>user\nWhat is ${left(5)}?\n${billing("e")}<|im_end|>\n<|im_start|>assistant\n`,
    );
    // Not where nothing else is left.
    expect(await promptOf([{ role: "user", content: left(5) }])).toContain(left(5));
    expect(await promptOf([{ role: "system", content: left(5) }])).toContain(left(5));
    // What a tool returns, or the model has said, is not the agent's.
    const results = [
      { role: "assistant", content: left(4) },
      { role: "tool", content: left(3), tool_call_id: "1" },
    ];
    expect(await promptOf(results)).toContain(left(3));
    expect(await promptOf(results)).toContain(left(4));
  });
});

test("kept where the operator wants them: no turn hits anything behind the first", async () => {
  const seen = await usages(keeping, 3);
  for (const usage of seen) expect(usage.cache_read_input_tokens).toBeLessThan(128);
  const response = await keeping.post("/tokenize", {
    messages: [
      { role: "system", content: left(1) },
      { role: "user", content: "Hi" },
    ],
  });
  const plain = await server.post("/tokenize", { messages: [{ role: "user", content: "Hi" }] });
  const count = async (from: Response) => ((await from.json()) as { count: number }).count;
  expect(await count(response)).toBeGreaterThan(await count(plain));
});

test("megabytes of what nearly is a mark take no time", async () => {
  for (const part of ["\n", "<total_tokens>", "<total_tokens>1", "x-anthropic-billing-header:"]) {
    const content = part.repeat(2 ** 22 / part.length);
    const response = await server.post("/v1/chat/completions", {
      messages: [{ role: "system", content }],
    });
    expect(response.status).toBe(400);
  }
}, 10_000);

test("thoughts of earlier turns are taken by either name, and kept or dropped as the template says", async () => {
  const folder = mkdtempSync(join(tmpdir(), "mlx-serve-thoughts-"));
  writeChatModel(folder);
  const template =
    "{% for m in messages %}{% if loop.last %}[{{ m.reasoning_content }}|{{ m.reasoning }}]{% endif %}{% endfor %}";
  const file = join(folder, "tokenizer_config.json");
  editJson(file, (json) => ({ ...json, chat_template: template }));
  const own = await startTestServer({ model: folder });
  const promptOf = async (...thoughts: object[]) => {
    const messages = thoughts.map((thought) => ({ role: "assistant", content: "a", ...thought }));
    const { tokens } = (await (await own.post("/tokenize", { messages })).json()) as { tokens: [] };
    return (await own.post("/detokenize", { tokens })).json();
  };
  const earlier = { reasoning: "dropped" };
  expect(await promptOf(earlier, { reasoning_content: "x" })).toEqual({ prompt: "[x|x]" });
  expect(await promptOf(earlier, { reasoning: "y" })).toEqual({ prompt: "[y|y]" });
  expect(await promptOf({ reasoning: "y", reasoning_content: "x" })).toEqual({ prompt: "[x|x]" });
  await own.stop();
  rmSync(folder, { recursive: true });
});
