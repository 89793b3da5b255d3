// Converts FP8: 8-bit float weights, multiplied by `name`_scale_inv or `name`_scale per block (DeepSeek, Qwen,
// MiniMax), row (fbgemm) or tensor (AutoFP8, Mistral).
import { z } from "zod";
import type { StoredTensor } from "../stored/tensor.ts";
import { byteFloats, isMx, mxTensors, scaledFloats } from "./floats.ts";
import { dropActivationScales, type Tensors, takeFrom } from "./folder-tensors.ts";

const side = z.int().positive();

export const Fp8Config = z.looseObject({ weight_block_size: z.tuple([side, side]).nullish() });
type Fp8Config = z.infer<typeof Fp8Config>;

export function fp8({ weight_block_size }: Fp8Config, tensors: Tensors): void {
  dropActivationScales(tensors);
  for (const [name, weight] of [...tensors]) {
    if (!byteFloats.has(weight.format)) continue;
    const scale = scaleOf(name, tensors);
    if (!scale) continue;
    for (const made of matrix(weight, scale, weight_block_size ?? undefined)) {
      tensors.set(made.name, made);
    }
  }
}

function scaleOf(name: string, tensors: Tensors): StoredTensor | undefined {
  return takeFrom(tensors, `${name}_scale_inv`) ?? takeFrom(tensors, `${name}_scale`);
}

export function matrix(
  weight: StoredTensor,
  scale: StoredTensor,
  block: readonly [number, number] | undefined,
): StoredTensor[] {
  const [, stem] = /^(.*)\.weight$/.exec(weight.name) ?? [];
  if (stem && weight.format === "F8_E4M3" && isMx(weight, scale, 1)) {
    return mxTensors(stem, weight, scale);
  }
  return [scaledFloats(weight, scale, block)];
}
