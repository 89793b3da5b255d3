// Translates a client's request into an engine request.
import type { SamplingFields, ServiceTier } from "../api/sampling.ts";
import type { Settings } from "../config/settings.ts";
import type { EngineRequest, Priority, Sampling } from "../engine/protocol.ts";
import type { Caller } from "../keys/key-ring.ts";
import type { ServedModel } from "../serve/models.ts";
import { badRequest } from "./errors.ts";

const order: readonly Priority[] = ["LOW", "NORMAL", "HIGH"];

/** A higher one goes first. */
export const levelOf = (priority: Priority) => order.indexOf(priority);

/** The lowest of what the key, the route and the request allow. */
export function priorityOf(caller: Caller, ceiling: Priority, asked: SamplingFields): Priority {
  const requested: Priority = asked.service_tier === "flex" ? "LOW" : "HIGH";
  const granted = [caller.tier, ceiling, requested].map(levelOf);
  return order[Math.min(...granted)]!;
}

const serviceTiers: Readonly<Record<Priority, ServiceTier>> = {
  LOW: "flex",
  NORMAL: "default",
  HIGH: "priority",
};

/** The tier that a request was served at, if it named one. */
export function servedTierOf(priority: Priority, asked: SamplingFields): ServiceTier | undefined {
  return asked.service_tier && serviceTiers[priority];
}

/** An absent field falls back to the server's settings, then generation_config.json, then OpenAI's default. */
export function samplingOf(
  asked: SamplingFields,
  settings: Settings,
  { text: { sampling: suggested } }: ServedModel,
): Sampling {
  const bias = Object.entries(asked.logit_bias ?? {});
  return {
    temperature: asked.temperature ?? settings.temperature ?? suggested.temperature ?? 1,
    topP: asked.top_p ?? settings.topP ?? suggested.topP,
    topK: asked.top_k ?? settings.topK ?? suggested.topK,
    minP: asked.min_p ?? settings.minP ?? suggested.minP,
    seed: asked.seed,
    repetitionPenalty: asked.repetition_penalty ?? suggested.repetitionPenalty,
    presencePenalty: asked.presence_penalty,
    frequencyPenalty: asked.frequency_penalty,
    logitBias:
      bias.length > 0 ? new Map(bias.map(([id, value]) => [Number(id), value])) : undefined,
  };
}

/** Tokens that end an answer. */
export function stopTokensOf(asked: SamplingFields, { text }: ServedModel): number[] {
  return [...(asked.ignore_eos ? [] : text.stopTokens), ...(asked.stop_token_ids ?? [])];
}

/** As many as were asked for, at most what the context has left after the prompt; 0 generates nothing. */
export function maxTokensOf(
  asked: number | undefined,
  { maxTokens: preset }: Settings,
  { info }: ServedModel,
  promptLength: number,
): EngineRequest["maxTokens"] {
  if (asked === 0) return 0;
  const room = info.maxLength - promptLength;
  return Math.max(1, Math.min(asked ?? preset ?? room, room));
}

/** Keys never share cached blocks: latency must not reveal what another key has sent. */
export function saltOf({ name }: Caller, asked?: SamplingFields): string {
  return JSON.stringify([name, asked?.cache_salt ?? ""]);
}

/** Rejects token ids outside the vocabulary, with the name of their parameter. */
export function checkTokens(asked: SamplingFields, vocabulary: number): void {
  checkIds("logit_bias", Object.keys(asked.logit_bias ?? {}).map(Number), vocabulary);
  checkIds("stop_token_ids", asked.stop_token_ids ?? [], vocabulary);
}

type TokenIds = readonly number[] | Uint32Array;

export function checkPromptTokens(
  param: string,
  prompts: readonly TokenIds[],
  vocabulary: number,
): void {
  for (const prompt of prompts) checkIds(param, prompt, vocabulary);
}

function checkIds(param: string, ids: TokenIds, vocabulary: number): void {
  if (!ids.some((id) => id >= vocabulary)) return;
  const message = `Invalid '${param}': expected token ids below ${vocabulary}.`;
  throw badRequest(param, message, "invalid_value");
}
