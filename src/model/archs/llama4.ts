// Llama 4: attention within chunks in layers with RoPE, to all tokens in those without, and one expert of many beside
// one that all tokens go through. Of files that also see, the part that reads and writes text.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import { add, astype, multiply, squeeze } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { decoder, unwrapText } from "../decoder.ts";
import { router, transposeExperts } from "../experts.ts";
import { withTemperature } from "../head-changes.ts";
import {
  attentionBlock,
  expertMlps,
  gatedMlp,
  plainNorm,
  preNormBlock,
  rmsNorm,
} from "../layers.ts";
import type { Model } from "../model.ts";
import { arrangeHalves } from "../qkv.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  attention_chunk_size: z.int().positive().nullish(),
  /** Those with RoPE are chunked unless it says. */
  layer_types: z.array(z.enum(["chunked_attention", "full_attention"])).nullish(),
  /** Of layers without experts; intermediate_size is an expert's. */
  intermediate_size_mlp: z.int().positive(),
  num_local_experts: z.int().default(0),
  num_experts_per_tok: z.literal(1).default(1),
  /** 0 or false for layers without RoPE: every fourth unless it says. */
  no_rope_layers: z.array(z.union([z.int(), z.boolean()])).nullish(),
  use_qk_norm: z.boolean().default(true),
  attn_temperature_tuning: z.union([z.int(), z.boolean()]).default(true),
  floor_scale: z.number().positive().default(8192),
  attn_scale: z.number().default(0.1),
});
type Config = z.infer<typeof Config>;

const Wrapped = z.looseObject({ text_config: z.looseObject({}) });

export function llama4(config: unknown, weights: Weights): Model {
  const wrapped = Wrapped.safeParse(config);
  const text = wrapped.success
    ? { model_type: "llama4_text", ...wrapped.data.text_config }
    : config;
  const parsed = parseConfig(Config, text);
  const {
    hidden_size: dims,
    rms_norm_eps: eps,
    no_rope_layers,
    attention_chunk_size,
    layer_types,
  } = parsed;
  unwrapText(weights);
  const sizes = { dims, ...headsOf(parsed) };
  const { heads, headDim } = sizes;
  const temperature = { scale: parsed.attn_scale, every: parsed.floor_scale, first: 1 };
  const rope = makeRope(weights, ropeOptions(parsed, headDim));
  const headNorm = parsed.use_qk_norm ? plainNorm(weights, headDim, eps) : undefined;
  return decoder(
    parsed,
    weights,
    (name, layer, states) => {
      const rotates = Boolean(no_rope_layers?.[layer] ?? (layer + 1) % 4 !== 0);
      const kind = layer_types?.[layer] ?? (rotates ? "chunked_attention" : "full_attention");
      const isChunked = kind === "chunked_attention";
      if (rotates) arrangeHalves(weights, `${name}.self_attn`, sizes);
      // The norm comes after RoPE, which changes no head's length: it may as well come before.
      const [qNorm, kNorm] = rotates ? [headNorm, headNorm] : [];
      const attend = attentionBlock(weights, `${name}.self_attn`, states, sizes, {
        rope: rotates ? rope : undefined,
        qNorm,
        kNorm,
        attention: {
          scale: headDim ** -0.5,
          window: isChunked ? (attention_chunk_size ?? undefined) : undefined,
          chunked: true,
        },
      });
      const isTuned = !rotates && parsed.attn_temperature_tuning;
      const isSparse = weights.has(`${name}.feed_forward.router.weight`);
      return preNormBlock(
        isTuned ? withTemperature(attend, heads * headDim, temperature) : attend,
        isSparse
          ? sparseMlp(parsed, weights, `${name}.feed_forward`)
          : gatedMlp(weights, `${name}.feed_forward`, dims, parsed.intermediate_size_mlp),
        rmsNorm(weights, `${name}.input_layernorm`, dims, eps),
        rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps),
      );
    },
    { ignored: /^(vision_model|multi_modal_projector)\./ },
  );
}

function sparseMlp(config: Config, weights: Weights, name: string): Linear {
  const { hidden_size: dims, intermediate_size: hidden, num_local_experts: experts } = config;
  transposeExperts(weights, `${name}.experts`, `${name}.experts`);
  const route = router(
    weights,
    `${name}.router`,
    { experts, dims },
    { each: 1, scores: "sigmoid", isNormalized: false, scale: 1 },
  );
  const mlps = expertMlps(weights, `${name}.experts`, { experts, dims, hidden });
  const shared = gatedMlp(weights, `${name}.shared_expert`, dims, hidden);
  return (input, { norm, residual } = {}) => {
    const x = norm ? norm(input) : input;
    const { chosen, shares } = route(x); // (T, 1)
    const open = multiply(x, astype(shares, x.dtype));
    return add(shared(x, { residual }), squeeze(mlps(open, chosen), 1));
  };
}
