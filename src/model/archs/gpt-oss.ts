// gpt-oss: experts in every layer, a window in every other, and an attention sink in each head.
import { clippedSwiglu } from "../activations.ts";
import { asWords, everySecond } from "../arrangement.ts";
import { count, positive } from "../config.ts";
import { expertKeys, expertsOf } from "../expert-design.ts";
import { family } from "../family.ts";
import type { Weights } from "../weights.ts";

export const gptOss = family({
  config: { ...expertKeys, n_routed_experts: count, swiglu_limit: positive.default(7) },
  defaults: {
    num_experts_per_tok: 4,
    head_dim: 64,
    rms_norm_eps: 1e-5,
    rope_theta: 150_000,
    sliding_window: 128,
  },
  keys: { n_routed_experts: "num_local_experts" },
  // GGUF files have an ending for all names.
  names: { ".sinks.weight": ".sinks", ".mlp.router.": ".mlp.gate." },
  design: (config, weights) => ({
    slides: (layer) => layer % 2 === 0,
    attention: (name, { heads }) => ({ sinks: weights.tensor(`${name}.sinks`, [heads]) }),
    arrangeMlp: (name) => arrangeBlocks(weights, `${name}.experts`),
    gating: clippedSwiglu(config.swiglu_limit),
    experts: expertsOf(config, { hidden: config.intermediate_size }),
  }),
});

/** In OpenAI's own files the rows of gate and up alternate, and mxfp4 is stored in blocks of bytes. */
function arrangeBlocks(weights: Weights, name: string): void {
  if (!weights.has(`${name}.gate_up_proj_blocks`)) return;
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
