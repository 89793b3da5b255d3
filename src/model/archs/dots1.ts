// dots.llm1: experts chosen as in DeepSeek V3, and norms of queries and keys.
import { parseConfig } from "../config.ts";
import { nameExperts } from "../experts.ts";
import type { Model } from "../model.ts";
import { attentionLayers, preNormDecoder } from "../pre-norm-decoder.ts";
import type { Weights } from "../weights.ts";
import { ExpertsConfig, expertLayers } from "./deepseek-v2.ts";
import { correctedRouting } from "./deepseek-v3.ts";

export function dots1(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(ExpertsConfig, config);
  const makeMlp = expertLayers(parsed, weights, correctedRouting(parsed));
  return preNormDecoder(
    parsed,
    weights,
    attentionLayers(parsed, weights, { norms: "heads" }),
    (name, layer) => {
      nameExperts(weights, name);
      return makeMlp(name, layer);
    },
  );
}
