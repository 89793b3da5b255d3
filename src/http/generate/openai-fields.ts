// Maps the fields shared by OpenAI's chat and text completions to parts of a conversation.
import type { SamplingFields } from "../../api/sampling.ts";
import type { ToolChoice as AskedChoice, Tool as AskedTool } from "../../api/tools.ts";
import type { Conversation, OfferedTool, ToolChoice } from "../../conversation/conversation.ts";
import { askedPriority } from "../frame/priority.ts";

type Common = Pick<Conversation, "model" | "sampling" | "limits" | "n" | "priority" | "cacheSalt">;

export function commonOf(asked: SamplingFields, maxTokens: number | undefined): Common {
  const bias = Object.entries(asked.logit_bias ?? {});
  return {
    model: asked.model,
    n: asked.n,
    sampling: {
      temperature: asked.temperature,
      topP: asked.top_p,
      topK: asked.top_k,
      minP: asked.min_p,
      seed: asked.seed,
      repetitionPenalty: asked.repetition_penalty,
      presencePenalty: asked.presence_penalty,
      frequencyPenalty: asked.frequency_penalty,
      logitBias:
        bias.length > 0 ? new Map(bias.map(([id, value]) => [Number(id), value])) : undefined,
    },
    limits: {
      maxTokens,
      minTokens: asked.min_tokens,
      stops: asked.stop ?? [],
      stopTokenIds: asked.stop_token_ids ?? [],
      ignoreEos: asked.ignore_eos,
    },
    priority: askedPriority(asked.service_tier),
    cacheSalt: asked.cache_salt,
  };
}

export function offeredTool({ function: asked }: AskedTool): OfferedTool {
  const { name, description, parameters } = asked;
  const isStrict = asked.strict && parameters !== undefined;
  return { name, description, parameters: objectSchema(parameters), isStrict };
}

const noArguments = { properties: {}, additionalProperties: false };

/** Returns a function's parameters as a JSON schema of an object, even if the type is missing. */
export function objectSchema(
  parameters: Record<string, unknown> = noArguments,
): Record<string, unknown> {
  return { type: "object", ...parameters };
}

export function toolChoiceOf(asked: AskedChoice = "auto"): ToolChoice {
  return typeof asked === "object" ? { name: asked.function.name } : asked;
}
