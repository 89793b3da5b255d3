// gpt-oss: experts in every layer, a window in every other, and an attention sink in each head.
import { z } from "zod";
import type { Gating, Linear } from "../../device/device.ts";
import { add, clip, minimum, multiply, sigmoid } from "../../mlx/ops.ts";
import { asWords, everySecond } from "../arrangement.ts";
import { BaseConfig, headsOf, parseConfig, windowOf } from "../config.ts";
import { decoder } from "../decoder.ts";
import { router } from "../experts.ts";
import { attentionBlock, expertMlps, preNormBlock, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  num_local_experts: z.int().positive(),
  num_experts_per_tok: z.int().positive().default(4),
  head_dim: z.int().positive().default(64),
  rms_norm_eps: z.number().positive().default(1e-5),
  rope_theta: z.number().positive().default(150_000),
  sliding_window: z.int().default(128),
  swiglu_limit: z.number().positive().default(7),
});
type Config = z.infer<typeof Config>;

export function gptOss(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, rms_norm_eps: eps } = parsed;
  const sizes = { dims, ...headsOf(parsed) };
  const rope = makeRope(weights, ropeOptions(parsed, sizes.headDim));
  // GGUF files have an ending for all names.
  weights.renameParts({ ".sinks.weight": ".sinks" });
  return decoder(parsed, weights, (name, layer, states) =>
    preNormBlock(
      attentionBlock(weights, `${name}.self_attn`, states, sizes, {
        rope,
        attention: {
          scale: sizes.headDim ** -0.5,
          window: windowOf(parsed, layer, (at) => at % 2 === 0),
          sinks: weights.tensor(`${name}.self_attn.sinks`, [sizes.heads]),
        },
      }),
      sparseMlp(parsed, weights, `${name}.mlp`),
      rmsNorm(weights, `${name}.input_layernorm`, dims, eps),
      rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps),
    ),
  );
}

function sparseMlp(config: Config, weights: Weights, name: string): Linear {
  const { hidden_size: dims, num_local_experts: experts, num_experts_per_tok } = config;
  if (weights.has(`${name}.experts.gate_up_proj_blocks`)) {
    arrangeExperts(weights, `${name}.experts`);
  }
  const sizes = { experts, dims, hidden: config.intermediate_size };
  const route = router(weights, `${name}.router`, sizes, {
    each: num_experts_per_tok,
    scores: "softmax",
    isNormalized: true,
    scale: 1,
  });
  const mlps = expertMlps(weights, `${name}.experts`, sizes, clippedSwiglu(config.swiglu_limit));
  return (input, { norm, residual } = {}) => {
    const x = norm ? norm(input) : input;
    const { chosen, shares } = route(x);
    return weights.device.combine(mlps(x, chosen), shares, residual);
  };
}

/** The gate has no lower limit, and the other half is moved by 1. */
const clippedSwiglu =
  (limit: number): Gating =>
  (gate, up) => {
    const clipped = minimum(gate, limit);
    const gated = multiply(clipped, sigmoid(multiply(clipped, 1.702)));
    return multiply(add(clip(up, -limit, limit), 1), gated);
  };

/** In OpenAI's own files the rows of gate and up alternate, and mxfp4 is stored in blocks of bytes. */
function arrangeExperts(weights: Weights, name: string): void {
  const halves = ["gate", "up"] as const;
  for (const [half, part] of halves.entries()) {
    const take = (source: string, kind: string, words = false) =>
      weights.arrange([`${name}.gate_up_proj_${source}`], ([stored]) => {
        const rows = everySecond(`${name}.${part}_proj.${kind}`, stored!, 1, half as 0 | 1);
        return words ? asWords(rows.name, rows) : rows;
      });
    take("blocks", "weight", true);
    take("scales", "scales");
    take("bias", "bias");
  }
  const down = `${name}.down_proj`;
  weights.arrange([`${down}_blocks`], ([stored]) => asWords(`${down}.weight`, stored!));
  weights.arrange([`${down}_scales`], ([stored]) => ({ ...stored!, name: `${down}.scales` }));
  weights.arrange([`${down}_bias`], ([stored]) => ({ ...stored!, name: `${down}.bias` }));
}
