// The actions of soak clients, each with its own check.
import OpenAI, { APIError, APIUserAbortError } from "openai";
import type { Random } from "../../test/support/random.ts";

export type Outcome = "answered" | "refused for now" | "refused" | "gone" | "attacked";

export type Visit = { name: string; run(random: Random): Promise<Outcome> };

const questions = [
  "What is the capital of France?",
  "Name three colours.",
  "Write a line about the sea.",
  "What is two and two?",
  "Who wrote Hamlet?",
  "Count to five.",
  "Say hello in Spanish.",
  "What do bees make?",
];

/** A shared prefix, long enough that several prompts exceed the pool. */
const background = "The harbour was quiet, and the boats lay side by side. ".repeat(40);

const schema = {
  type: "object",
  properties: { colour: { enum: ["red", "green", "blue"] }, count: { type: "integer" } },
  required: ["colour", "count"],
  additionalProperties: false,
};

const model = "default";

const chat = (question: string) => ({
  model,
  messages: [{ role: "user" as const, content: question }],
  max_tokens: 24,
  temperature: 0,
});

const nonsense = [
  {},
  { model, messages: [] },
  { ...chat("Hello"), temperature: -1 },
  { ...chat("Hello"), max_tokens: "many" },
  { ...chat("Hello"), model: "another" },
  chat("word ".repeat(20_000)),
];

export async function makeVisits(url: string, apiKey: string): Promise<Visit[]> {
  const clientOf = (path: string) =>
    new OpenAI({ baseURL: `${url}${path}`, apiKey, maxRetries: 0 });
  const [client, batch] = [clientOf("/v1"), clientOf("/v1/batch")];

  // The answer of an otherwise idle server to each question.
  const alone = new Map<string, string | null>();
  for (const question of questions) {
    const { choices } = await client.chat.completions.create(chat(question));
    alone.set(question, choices[0]!.message.content);
  }
  const expectSame = (question: string, text: string | null) => {
    const [found, expected] = [text, alone.get(question)].map((each) => JSON.stringify(each));
    if (found !== expected) throw new Error(`${found}, not ${expected}`);
  };
  const anyOf = (random: Random) => questions[random.below(questions.length)]!;

  const visits: Record<string, (random: Random) => Promise<Outcome>> = {
    async "an answer at once"(random) {
      const question = anyOf(random);
      const { chat: of } = random.chance(0.3) ? batch : client;
      const { choices } = await of.completions.create(chat(question));
      expectSame(question, choices[0]!.message.content);
      return "answered";
    },

    async "a stream"(random) {
      const question = anyOf(random);
      let text = "";
      const chunks = await client.chat.completions.create({ ...chat(question), stream: true });
      for await (const { choices } of chunks) text += choices[0]?.delta.content ?? "";
      expectSame(question, text);
      return "answered";
    },

    async "a stream that is left"(random) {
      const body = { ...chat(anyOf(random)), max_tokens: 200, stream: true as const };
      const controller = new AbortController();
      const timer = setTimeout(() => controller.abort(), random.below(500));
      let left = random.below(6);
      try {
        const { signal } = controller;
        for await (const _ of await client.chat.completions.create(body, { signal })) {
          left -= 1;
          if (left <= 0) break;
        }
      } finally {
        clearTimeout(timer);
      }
      return "gone";
    },

    async "several choices, drawn"(random) {
      const more = {
        n: 1 + random.below(3),
        temperature: 1,
        seed: random.below(1000),
        logprobs: true,
      };
      const { choices } = await client.chat.completions.create({ ...chat(anyOf(random)), ...more });
      const isWhole =
        choices.length === more.n && choices.every(({ logprobs }) => logprobs?.content);
      if (!isWhole) throw new Error(JSON.stringify(choices));
      return "answered";
    },

    async "a long prompt"(random) {
      const prompt = `${background.slice(0, random.below(background.length))} ${anyOf(random)}`;
      const max_tokens = 1 + random.below(40);
      const body = { model, prompt, max_tokens, stop: ["\n\n"], temperature: 0.7 };
      const { usage } = await client.completions.create(body);
      if (usage!.completion_tokens > max_tokens) throw new Error(JSON.stringify(usage));
      return "answered";
    },

    async "a schema"(random) {
      const { choices } = await client.chat.completions.create({
        ...chat("A colour and a count."),
        response_format: { type: "json_schema", json_schema: { name: "one", schema } },
        max_tokens: 60,
        temperature: 1,
        seed: random.below(1000),
      });
      const { message, finish_reason } = choices[0]!;
      if (finish_reason !== "stop") return "answered";
      const { colour, count } = JSON.parse(message.content!);
      const fits = schema.properties.colour.enum.includes(colour) && Number.isInteger(count);
      if (!fits) throw new Error(message.content!);
      return "answered";
    },

    async nonsense(random) {
      const body = nonsense[random.below(nonsense.length)];
      const answer = await client.post("/chat/completions", { body });
      throw new Error(`an answer to nonsense: ${JSON.stringify(answer)}`);
    },
  };

  return Object.entries(visits).map(([name, visit]) => ({
    name,
    run: (random) => visit(random).catch((error) => outcomeOf(error, name === "nonsense")),
  }));
}

/** Rethrows unexpected errors. */
function outcomeOf(error: unknown, isNonsense: boolean): Outcome {
  if (error instanceof APIUserAbortError) return "gone";
  if (error instanceof APIError && error.status === 429) return "refused for now";
  const isRefused = error instanceof APIError && [400, 404].includes(error.status);
  if (isNonsense && isRefused) return "refused";
  throw error;
}
