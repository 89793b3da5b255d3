// dots.llm1: experts chosen as in DeepSeek V3, and norms of queries and keys.
import { parseConfig } from "../config.ts";
import { nameExperts } from "../experts.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { ExpertsConfig, expertLayers } from "./deepseek-v2.ts";
import { correctedRouting } from "./deepseek-v3.ts";

export function dots1(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(ExpertsConfig, config);
  const makeMlp = expertLayers(parsed, weights, correctedRouting(parsed));
  return transformer(parsed, weights, {
    headNorms: ["q_norm", "k_norm"],
    mlp: (name, layer) => {
      nameExperts(weights, name);
      return makeMlp(name, layer);
    },
  });
}
