// Sampling defaults from generation_config.json. Invalid values are ignored.
import { z } from "zod";

const GenerationConfig = z.object({
  do_sample: z.boolean().optional().catch(undefined),
  temperature: z.number().min(0).max(2).optional().catch(undefined),
  top_p: z.number().gt(0).max(1).optional().catch(undefined),
  top_k: z.int().min(0).optional().catch(undefined),
  min_p: z.number().min(0).max(1).optional().catch(undefined),
  repetition_penalty: z.number().min(0.01).max(10).optional().catch(undefined),
});

export type SuggestedSampling = {
  temperature?: number | undefined;
  topP?: number | undefined;
  topK?: number | undefined;
  minP?: number | undefined;
  repetitionPenalty?: number | undefined;
};

export function suggestedSampling(generationConfig: unknown): SuggestedSampling {
  const parsed = GenerationConfig.safeParse(generationConfig);
  // Ignores the values without do_sample: they are only defaults of the library that wrote the file.
  if (!parsed.success || parsed.data.do_sample !== true) return {};
  const { temperature, top_p, top_k, min_p, repetition_penalty } = parsed.data;
  return {
    temperature,
    topP: top_p,
    topK: top_k,
    minP: min_p,
    repetitionPenalty: repetition_penalty,
  };
}
