// Converts BitNet's ternary weights: a byte of `weight` (outputs / 4, inputs) packs 2-bit weights of four rows, which
// are outputs / 4 apart; `weight_scale` is one number. They become 4-bit, which all devices can multiply.
import { z } from "zod";
import { LoadError, quoted } from "../../../files/load-error.ts";
import type { StoredTensor } from "../stored/tensor.ts";
import { affineTensors } from "./affine.ts";
import { computedWords, readNumbers, Scratch } from "./computed.ts";
import { required, stemsOf, type Tensors } from "./folder-tensors.ts";

export const BitnetConfig = z.looseObject({
  /** How the scale applies: "autobitlinear" multiplies by it, "bitlinear" divides by it. */
  linear_class: z.enum(["bitlinear", "autobitlinear"]).nullish(),
  quantization_mode: z.string().nullish(),
});
type BitnetConfig = z.infer<typeof BitnetConfig>;

export function bitnet({ linear_class, quantization_mode }: BitnetConfig, tensors: Tensors): void {
  if (quantization_mode && quantization_mode !== "offline") {
    throw new LoadError(
      `config.json: quantization_config.quantization_mode ${quoted(quantization_mode)} is not supported; offline is`,
    );
  }
  const multiplies = linear_class === "autobitlinear";
  for (const name of stemsOf(tensors, "weight_scale")) {
    const weight = required(tensors, `${name}.weight`);
    const scale = required(tensors, `${name}.weight_scale`);
    for (const made of matrix(name, weight, scale, multiplies)) tensors.set(made.name, made);
  }
}

const packedRow = new Scratch();
const scaleNumbers = new Scratch();
const scaleBytes = new Scratch();
const zeroNumbers = new Scratch();

function matrix(
  name: string,
  weight: StoredTensor,
  scale: StoredTensor,
  multiplies: boolean,
): StoredTensor[] {
  const [quarter, inputs] = weight.shape as [number, number];
  const isPacked = weight.format === "U8" && weight.shape.length === 2 && inputs % 32 === 0;
  const isSingle = scale.shape.reduce((a, b) => a * b, 1) === 1;
  if (!isPacked || !isSingle) {
    const found = `(${weight.shape}) of ${weight.format} with scales (${scale.shape})`;
    throw new LoadError(`${weight.name}: expected ternary weights of one scale, found ${found}`);
  }
  const outputs = 4 * quarter;
  return affineTensors({
    name,
    outputs,
    inputs,
    groups: 1,
    bits: 4,
    weight: computedWords({
      name: weight.name,
      shape: [outputs, inputs / 8],
      fill: (target, first, count) => {
        const bytes = packedRow.bytes(inputs);
        for (let i = 0, to = 0; i < count; i++) {
          const shift = 2 * Math.floor((first + i) / quarter);
          weight.read(((first + i) % quarter) * inputs, bytes);
          for (let at = 0; at < inputs; at += 8, to++) {
            let word = 0;
            for (let j = 0; j < 8; j++) word |= ((bytes[at + j]! >> shift) & 3) << (4 * j);
            target[to] = word;
          }
        }
      },
    }),
    scales: (_, count) => {
      const made = scaleNumbers.numbers(count);
      readNumbers(scale, 0, made.subarray(0, 1), scaleBytes);
      return made.fill(multiplies ? made[0]! : 1 / made[0]!);
    },
    // The zero point is 1, because -1, 0 and 1 are stored as 0, 1 and 2.
    zeros: (_, count) => zeroNumbers.numbers(count).fill(1),
  });
}
