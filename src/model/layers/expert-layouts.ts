// Converts the layouts in which files keep experts to ours: one tensor for all experts, in `name`.switch_mlp.
import {
  asWords,
  everySecond,
  runsOf,
  stacked,
  transposed,
} from "../checkpoint/stored/arrangement.ts";
import type { Weights } from "../weights/weights.ts";
import type { ExpertSizes } from "./layers.ts";

/** Names of an MLP's parts in files. */
const partNames = {
  gate_proj: ["gate_proj", "w1"],
  up_proj: ["up_proj", "w3", "v1"],
  down_proj: ["down_proj", "w2"],
};

export function arrangeExperts(
  weights: Weights,
  name: string,
  { experts, dims }: ExpertSizes,
): void {
  stackExperts(weights, name, experts);
  const [source, target] = [`${name}.experts`, `${name}.switch_mlp`];
  // Some of MLX's files name experts like a plain MLP.
  for (const part of Object.keys(partNames)) {
    if (!weights.has(`${source}.${part}.weight`)) continue;
    weights.rename({ [`${source}.${part}.`]: `${target}.${part}.` });
  }
  const both = weights.shapeOf(`${source}.gate_up_proj`);
  if (!both || weights.has(`${target}.gate_proj.weight`)) return;
  // (experts, 2 hidden, dims) and (experts, dims, hidden), or both transposed: at most one of the two is square.
  const down = weights.shapeOf(`${source}.down_proj`);
  if (both[2] === dims && down?.[1] === dims) {
    splitExperts(weights, `${source}.gate_up_proj`, target);
    weights.rename({ [`${source}.down_proj`]: `${target}.down_proj.weight` });
  } else transposeExperts(weights, source, target);
}

/** Most authors' files have one matrix per expert, in `name`.experts. */
function stackExperts(weights: Weights, name: string, experts: number): void {
  for (const [part, names] of Object.entries(partNames)) {
    for (const stored of names) {
      for (const kind of ["weight", "scales", "biases", "bias"]) {
        const each = (i: number) => `${name}.experts.${i}.${stored}.${kind}`;
        if (!weights.has(each(0))) continue;
        const all = Array.from({ length: experts }, (_, i) => each(i));
        weights.arrange(all, (tensors) => stacked(`${name}.switch_mlp.${part}.${kind}`, tensors));
      }
    }
  }
}

/** Some authors' files have gates and ups of all experts in one tensor: (experts, 2 hidden, dims). */
function splitExperts(weights: Weights, source: string, name: string): void {
  for (const [half, part] of ["gate_proj", "up_proj"].entries()) {
    weights.arrange([source], ([stored]) => {
      const [experts, both, dims] = stored!.shape as [number, number, number];
      const runs = Array.from({ length: experts }, (_, i) => {
        return { first: i * both + (half * both) / 2, count: both / 2 };
      });
      return runsOf(`${name}.${part}.weight`, stored!, {
        rows: experts * both,
        runs,
        shape: [experts, both / 2, dims],
      });
    });
  }
}

/** Others have it transposed, (experts, dims, 2 hidden), and down_proj too. */
function transposeExperts(weights: Weights, source: string, name: string): void {
  const pick = (stored: string, part: string, index: number, parts: number) => {
    if (!weights.has(`${source}.${stored}`)) return;
    weights.arrange([`${source}.${stored}`], ([tensor]) => {
      const columns = tensor!.shape[2]! / parts;
      const picked = { first: index * columns, count: columns };
      return transposed(`${name}.${part}.weight`, tensor!, picked);
    });
  };
  pick("gate_up_proj", "gate_proj", 0, 2);
  pick("gate_up_proj", "up_proj", 1, 2);
  pick("down_proj", "down_proj", 0, 1);
}

/** DBRX's files concatenate the rows of all experts, with down_proj transposed. */
export function splitExpertRows(
  weights: Weights,
  name: string,
  { experts, dims, hidden }: ExpertSizes,
): void {
  for (const [part, names] of Object.entries(partNames)) {
    const source = names
      .map((stored) => `${name}.experts.mlp.${stored}`)
      .find((each) => weights.has(each));
    if (!source) continue;
    const target = `${name}.switch_mlp.${part}.weight`;
    weights.arrange([source], ([tensor]) => {
      const apart = { ...tensor!, name: target, shape: [experts, hidden, dims] };
      return part === "down_proj" ? transposed(target, apart, { first: 0, count: dims }) : apart;
    });
  }
}

/**
 * OpenAI's files interleave gates and ups, and store mxfp4 as blocks of bytes. Unquantized experts are transposed:
 * (experts, dims, 2 hidden).
 */
export function arrangeInterleaved(weights: Weights, name: string): void {
  const [both, down] = [`${name}.gate_up_proj`, `${name}.down_proj`];
  // MLX's files have gates and ups apart.
  if (!weights.has(`${both}_bias`)) return;
  const isPlain = weights.has(both);
  for (const [half, part] of (["gate_proj", "up_proj"] as const).entries()) {
    const first = half as 0 | 1;
    const target = `${name}.${part}`;
    const take = (source: string, kind: string) =>
      weights.arrange([`${both}_${source}`], ([stored]) => {
        const rows = everySecond(`${target}.${kind}`, stored!, 1, first);
        return source === "blocks" ? asWords(rows.name, rows) : rows;
      });
    take("bias", "bias");
    if (isPlain) {
      weights.arrange([both], ([stored]) => {
        const count = stored!.shape[2]! / 2;
        return transposed(`${target}.weight`, stored!, { first, count, step: 2 });
      });
    } else {
      take("blocks", "weight");
      take("scales", "scales");
    }
  }
  weights.rename({ [`${down}_bias`]: `${down}.bias` });
  if (isPlain) {
    weights.arrange([down], ([stored]) =>
      transposed(`${down}.weight`, stored!, { first: 0, count: stored!.shape[2]! }),
    );
  } else {
    weights.arrange([`${down}_blocks`], ([stored]) => asWords(`${down}.weight`, stored!));
    weights.rename({ [`${down}_scales`]: `${down}.scales` });
  }
}
