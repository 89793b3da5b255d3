// Two turns with two calls at once in each: the client gets the thought, the text and the calls, goes on with them and their
// results, and is told as many tokens of the prompt as the prompt has.
import { expect } from "bun:test";
import type { TestServer } from "../support/server.ts";
import { now, rome, said, thought, tokensIn, weather } from "./thinking-model.ts";

export const system = "Be brief: Ελλάδα.";
export const question = "What is the weather in Rome?";
export const resultOf = (name: string) => (name === "now" ? "Noon." : "Sunny.");
export const functions = [now, weather];
export const maxTokens = 2000;

/** What a client has made of an answer, and how many tokens of the prompt it was told. */
export type Turn = {
  thought: string;
  said: string;
  calls: [name: string, input: unknown][];
  tokens: number;
};

/** A client with its own kind of answers. */
export type Client<Answer> = {
  /** Begins, or goes on from an answer with the results of its calls. */
  ask(stream: boolean, before: Answer | undefined): Promise<Answer>;
  turnOf(answer: Answer): Turn;
  /** The tokens of the prompt that `ask` would send, where the API counts them. */
  count?(before: Answer | undefined): Promise<number>;
};

export async function expectRoundTrip<Answer>(
  { prompts }: TestServer,
  { ask, turnOf, count }: Client<Answer>,
): Promise<void> {
  let before: Answer | undefined;
  for (const turn of [1, 2]) {
    prompts.length = 0;
    const whole = await ask(false, before);
    const streamed = await ask(true, before);
    // A request is logged after its client has the answer.
    while (prompts.length < 2) await Bun.sleep(5);
    const [prompt, again] = prompts as [string, string];
    expect(again).toBe(prompt);
    expect(prompt).toContain(system);
    expect(prompt.includes("Noon.") && prompt.includes("Sunny.")).toBe(turn === 2);
    expect(prompt.includes(`[${thought}]`)).toBe(turn === 2);
    const tokens = tokensIn(prompt);
    const calls: Turn["calls"] = [
      ["now", {}],
      ["get_weather", rome],
    ];
    const expected: Turn = { thought, said, calls, tokens };
    expect(turnOf(whole)).toEqual(expected);
    // The prompt is in the prefix cache by now, and counts the same.
    expect(turnOf(streamed)).toEqual(expected);
    if (count) expect(await count(before)).toBe(tokens);
    before = streamed;
  }
}
