// Qwen 1.5's and 2's mixtures of experts: beside them a wider one that all tokens go through, with a gate.
import { z } from "zod";
import { parseConfig } from "../config.ts";
import { gatedMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { qwenSlides } from "./qwen2.ts";
import { isSparse, MoeConfig, sparseMlp } from "./qwen3-moe.ts";

const Config = MoeConfig.extend({ shared_expert_intermediate_size: z.int().positive() });

export function qwen2Moe(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size, shared_expert_intermediate_size: width } = parsed;
  return transformer(parsed, weights, {
    slides: (layer) => qwenSlides(parsed, layer),
    mlp: (name, layer) =>
      isSparse(parsed, layer)
        ? sparseMlp(parsed, weights, name, {
            name: `${name}.shared_expert`,
            width,
            gate: `${name}.shared_expert_gate`,
          })
        : gatedMlp(weights, name, dims, intermediate_size),
  });
}
