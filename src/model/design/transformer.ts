// Builds the decoder of most families, with attention and an MLP per layer, from the family's design.
import type { Hidden, Linear } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { add, multiply } from "../../mlx/ops.ts";
import type { BaseConfig } from "../checkpoint/config.ts";
import type { Model, Step } from "../contract/model.ts";
import type { LayerStates } from "../contract/states.ts";
import { routedMlp } from "../layers/experts.ts";
import {
  type AnyNorm,
  type AttentionBlock,
  type Block,
  forRows,
  gatedMlp,
  layerNorm,
  ofTokens,
  plainMlp,
  rmsNorm,
  rowsOf,
} from "../layers/layers.ts";
import type { Weights } from "../weights/weights.ts";
import { attentionLayers, kvCrossings } from "./attention-layers.ts";
import { decoder } from "./decoder.ts";
import { type Design, type Norms, usualNorms } from "./design.ts";

export function transformer(config: BaseConfig, weights: Weights, design: Design): Model {
  const { hidden_size: dims, rms_norm_eps: eps } = config;
  const { norms = usualNorms, attentionName = "self_attn", mlpName = "mlp" } = design;
  const offset = config.norm_offset ?? design.normOffset ?? 0;
  const usualNorm = design.isLayerNorm ? layerNorm : rmsNorm;
  const makeNorm = design.makeNorm ?? ((name, size) => usualNorm(weights, name, size, eps, offset));
  const shared = kvCrossings(config, design);
  const makeAttention = attentionLayers(config, weights, design, offset, shared);
  const makeMlp = mlpLayers(config, weights, design);
  const makeLayer = (name: string, layer: number, states: LayerStates): Block => {
    const part = typeof attentionName === "function" ? attentionName(layer) : attentionName;
    const mix = makeAttention(`${name}.${part}`, layer, states);
    const mlp = mlpName === "" ? undefined : makeMlp(`${name}.${mlpName}`, layer);
    const named = Object.entries(typeof norms === "function" ? norms(layer) : norms);
    const own: Norms = Object.fromEntries(
      named.map(([place, norm]) => [place, makeNorm(`${name}.${norm}`, dims)]),
    );
    if (mlp && design.combine) return design.combine({ name, layer, mix, mlp, norms: own });
    if (mlp && design.isParallel) return parallelBlock(mix, mlp, own);
    return sequentialBlock(mix, mlp, own, design);
  };
  const ignored = [...(design.ignored ?? []), ...unusedTensors(config, design)];
  const crossings = [...(design.crossings ?? []), ...shared.values()];
  const options = { ...design, ignored, crossings };
  return decoder(config, weights, design.layer ?? makeLayer, makeNorm, options);
}

/** Returns a function that makes a layer's MLP or experts. */
function mlpLayers(config: BaseConfig, weights: Weights, design: Design) {
  const { hidden_size: dims, intermediate_size } = config;
  const { hidden = intermediate_size, gating, experts, activation } = design;
  return (name: string, layer: number): Linear => {
    design.arrangeMlp?.(name);
    const own = design.mlp?.(name, layer);
    if (own) return own;
    if (experts && experts.count > 0 && (experts.isSparse?.(layer) ?? true)) {
      return routedMlp(weights, name, dims, experts, gating);
    }
    const width = typeof hidden === "function" ? hidden(layer) : hidden;
    return activation
      ? plainMlp(weights, name, dims, width, activation)
      : gatedMlp(weights, name, dims, width, gating);
  };
}

/** Maximum number of MTP layers after the last layer. */
const MOST_BEHIND = 8;

function unusedTensors(config: BaseConfig, { hasLayersBehind, kvOwners }: Design): RegExp[] {
  const { num_hidden_layers: layers } = config;
  const numbers = (first: number, end: number) =>
    Array.from({ length: end - first }, (_, i) => first + i).join("|");
  const behind = numbers(layers, layers + MOST_BEHIND);
  const sharing = kvOwners === undefined ? "" : numbers(kvOwners, layers);
  return [
    ...(hasLayersBehind ? [new RegExp(`^model\\.layers\\.(${behind})\\.`)] : []),
    // Ignores key and value tensors of layers that read another layer's keys and values.
    ...(sharing ? [new RegExp(`^model\\.layers\\.(${sharing})\\.self_attn\\.(k_|v_)`)] : []),
  ];
}

/** Computes x + norm(attend(norm(x))), then the same with the MLP. Each norm is optional. */
function sequentialBlock(
  mix: AttentionBlock,
  mlp: Linear | undefined,
  norms: Norms,
  { branchScale = 1, mlpScale = 1, sum = add }: Design,
): Block {
  const branch = (
    x: Hidden,
    before: AnyNorm | undefined,
    after: AnyNorm | undefined,
    compute: Linear,
    scale: number,
    rows?: MlxArray,
  ) => {
    // Attention and MLP fuse the RMS norm of their input and the residual sum into their linear layers.
    const norm = before && "eps" in before ? before : undefined;
    const input = before && !norm ? before(x) : x;
    if (!after && scale === 1 && sum === add) return compute(input, { norm, residual: x });
    const made = compute(input, { norm });
    const normed = after ? after(made) : made;
    return sum(rowsOf(x, rows), scale === 1 ? normed : multiply(normed, scale));
  };
  return ofTokens((rows, x: Hidden, step: Step) => {
    const attend: Linear = (input, fused) => forRows(mix, rows, input, step, fused);
    const h = branch(x, norms.attention, norms.afterAttention, attend, branchScale, rows);
    return mlp ? branch(h, norms.mlp, norms.afterMlp, mlp, branchScale * mlpScale) : h;
  });
}

/** Computes x + attend(norm(x)) + mlp(norm(x)). */
function parallelBlock(mix: AttentionBlock, mlp: Linear, norms: Norms): Block {
  return ofTokens((rows, x: Hidden, step: Step) => {
    const input = norms.attention ? norms.attention(x) : x;
    const h = forRows(mix, rows, input, step, { residual: x });
    return mlp(norms.mlp ? norms.mlp(rowsOf(x, rows)) : rowsOf(input, rows), { residual: h });
  });
}
