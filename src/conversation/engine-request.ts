// Translates a conversation into the engine's requests.
import type { Settings } from "../config/settings.ts";
import type { EngineRequest, Sampling } from "../engine/protocol.ts";
import type { ServedModel } from "../serve/models.ts";
import type { Conversation, SamplingChoice } from "./conversation.ts";
import { ConversationError } from "./conversation-error.ts";
import type { Limits } from "./limits.ts";

/** Fields of the engine request that do not come from the conversation. */
export type Given = Pick<
  EngineRequest,
  "name" | "priority" | "client" | "heads" | "salt" | "grammar" | "grammarLane"
>;

export function engineRequestMaker(
  { sampling, limits, n, logprobs, promptLogprobs }: Conversation,
  settings: Settings,
  model: ServedModel,
  given: Given,
): (prompt: Uint32Array) => EngineRequest {
  const common = {
    ...given,
    n,
    minTokens: limits.minTokens ?? 0,
    stopTokens: stopTokensOf(limits, model),
    sampling: { ...samplingOf(sampling, settings, model), logprobs },
    ...(promptLogprobs !== undefined && { promptLogprobs }),
  };
  return (prompt) => ({
    ...common,
    prompt: prompt.slice(),
    maxTokens: maxTokensOf(limits.maxTokens, settings, model, prompt.length),
  });
}

/** Fills absent options from the server's settings, then generation_config.json, then OpenAI's defaults. */
function samplingOf(
  asked: SamplingChoice,
  settings: Settings,
  { text: { sampling: suggested } }: ServedModel,
): Sampling {
  return {
    ...asked,
    temperature: asked.temperature ?? settings.temperature ?? suggested.temperature ?? 1,
    topP: asked.topP ?? settings.topP ?? suggested.topP,
    topK: asked.topK ?? settings.topK ?? suggested.topK,
    minP: asked.minP ?? settings.minP ?? suggested.minP,
    repetitionPenalty: asked.repetitionPenalty ?? suggested.repetitionPenalty,
  };
}

/** Returns the tokens that end an answer. */
function stopTokensOf({ ignoreEos, stopTokenIds = [] }: Limits, { text }: ServedModel): number[] {
  return [...(ignoreEos ? [] : text.stopTokens), ...stopTokenIds];
}

/** Returns the maximum tokens of the answer: the requested number, but at most the context left after the prompt. */
function maxTokensOf(
  asked: number | undefined,
  { maxTokens: preset }: Settings,
  { info }: ServedModel,
  promptLength: number,
): EngineRequest["maxTokens"] {
  if (asked === 0) return 0;
  const room = info.maxLength - promptLength;
  return Math.max(1, Math.min(asked ?? preset ?? room, room));
}

/** Returns a salt that keeps API keys from sharing cached blocks: latency must not reveal another key's prompts. */
export function saltOf(key: string, cacheSalt = ""): string {
  return JSON.stringify([key, cacheSalt]);
}

/** Rejects a request for a longer context than the model has. */
export function checkContext({ limits: { context } }: Conversation, { info }: ServedModel): void {
  if (!context || context.tokens <= info.maxLength) return;
  throw new ConversationError(context.param, `expected at most ${info.maxLength} tokens`);
}

/** Rejects token ids outside the vocabulary. */
export function checkTokens({ sampling, limits }: Conversation, { info }: ServedModel): void {
  checkIds("logitBias", [...(sampling.logitBias?.keys() ?? [])], info.vocabulary);
  checkIds("stopTokenIds", limits.stopTokenIds ?? [], info.vocabulary);
}

type TokenIds = readonly number[] | Uint32Array;

export function checkPromptTokens(prompts: readonly TokenIds[], { info }: ServedModel): void {
  for (const prompt of prompts) checkIds("prompt", prompt, info.vocabulary);
}

function checkIds(field: string, ids: TokenIds, vocabulary: number): void {
  if (!ids.some((id) => id >= vocabulary)) return;
  throw new ConversationError(field, `expected token ids below ${vocabulary}`);
}
