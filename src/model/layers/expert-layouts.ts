// Converts the layouts in which files keep experts to ours: one tensor for all experts, in `name`.switch_mlp.
import {
  asWords,
  everySecond,
  runsOf,
  stacked,
  transposed,
} from "../checkpoint/stored/arrangement.ts";
import type { StoredTensors } from "../weights/stored-tensors.ts";
import type { ExpertSizes } from "./layers.ts";

/** Our names of an MLP's matrices, and the names in files. */
const partNames = {
  gate_proj: ["gate_proj", "w1"],
  up_proj: ["up_proj", "w3", "v1"],
  down_proj: ["down_proj", "w2"],
};

export function arrangeExperts(
  stored: StoredTensors,
  name: string,
  { experts, dims }: ExpertSizes,
): void {
  stackExperts(stored, name, experts);
  const [source, target] = [`${name}.experts`, `${name}.switch_mlp`];
  // Renames the stacked experts of some MLX files: `name`.experts.gate_proj to `name`.switch_mlp.gate_proj.
  for (const part of Object.keys(partNames)) {
    if (!stored.has(`${source}.${part}.weight`)) continue;
    stored.rename({ [`${source}.${part}.`]: `${target}.${part}.` });
  }
  const both = stored.get(`${source}.gate_up_proj`)?.shape;
  if (!both || stored.has(`${target}.gate_proj.weight`)) return;
  // gate_up is (experts, 2 hidden, dims), or transposed together with down_proj. Checks both: one may be square.
  const down = stored.get(`${source}.down_proj`)?.shape;
  if (both[2] === dims && down?.[1] === dims) {
    splitExperts(stored, `${source}.gate_up_proj`, target);
    stored.rename({ [`${source}.down_proj`]: `${target}.down_proj.weight` });
  } else transposeExperts(stored, source, target);
}

/** Stacks matrices of single experts, `name`.experts.0 and so on, as most authors' files have them. */
function stackExperts(stored: StoredTensors, name: string, experts: number): void {
  for (const [part, names] of Object.entries(partNames)) {
    for (const other of names) {
      for (const kind of ["weight", "scales", "biases", "bias"]) {
        const each = (i: number) => `${name}.experts.${i}.${other}.${kind}`;
        if (!stored.has(each(0))) continue;
        const all = Array.from({ length: experts }, (_, i) => each(i));
        stored.arrange(all, (tensors) => stacked(`${name}.switch_mlp.${part}.${kind}`, tensors));
      }
    }
  }
}

/** Splits gate_up (experts, 2 hidden, dims) of all experts into gates and ups. */
function splitExperts(stored: StoredTensors, source: string, name: string): void {
  for (const [half, part] of ["gate_proj", "up_proj"].entries()) {
    stored.arrange([source], ([tensor]) => {
      const [experts, both, dims] = tensor!.shape as [number, number, number];
      const runs = Array.from({ length: experts }, (_, i) => {
        return { first: i * both + (half * both) / 2, count: both / 2 };
      });
      return runsOf(`${name}.${part}.weight`, tensor!, {
        rows: experts * both,
        runs,
        shape: [experts, both / 2, dims],
      });
    });
  }
}

/** Transposes gate_up (experts, dims, 2 hidden) and down_proj (experts, hidden, dims), and splits gate_up. */
function transposeExperts(stored: StoredTensors, source: string, name: string): void {
  const pick = (matrix: string, part: string, index: number, parts: number) => {
    if (!stored.has(`${source}.${matrix}`)) return;
    stored.arrange([`${source}.${matrix}`], ([tensor]) => {
      const columns = tensor!.shape[2]! / parts;
      const picked = { first: index * columns, count: columns };
      return transposed(`${name}.${part}.weight`, tensor!, picked);
    });
  };
  pick("gate_up_proj", "gate_proj", 0, 2);
  pick("gate_up_proj", "up_proj", 1, 2);
  pick("down_proj", "down_proj", 0, 1);
}

/** Splits DBRX's matrices, which concatenate the rows of all experts, with down_proj transposed. */
export function splitExpertRows(
  stored: StoredTensors,
  name: string,
  { experts, dims, hidden }: ExpertSizes,
): void {
  for (const [part, names] of Object.entries(partNames)) {
    const source = names
      .map((other) => `${name}.experts.mlp.${other}`)
      .find((each) => stored.has(each));
    if (!source) continue;
    const target = `${name}.switch_mlp.${part}.weight`;
    stored.arrange([source], ([tensor]) => {
      const apart = { ...tensor!, name: target, shape: [experts, hidden, dims] };
      return part === "down_proj" ? transposed(target, apart, { first: 0, count: dims }) : apart;
    });
  }
}

/**
 * Rearranges OpenAI's experts, whose gates and ups are interleaved: mxfp4 as blocks of bytes, or unquantized and
 * transposed (experts, dims, 2 hidden).
 */
export function arrangeInterleaved(stored: StoredTensors, name: string): void {
  const [both, down] = [`${name}.gate_up_proj`, `${name}.down_proj`];
  // Returns for MLX's files, which have gates and ups in separate tensors already.
  if (!stored.has(`${both}_bias`)) return;
  const isPlain = stored.has(both);
  for (const [half, part] of (["gate_proj", "up_proj"] as const).entries()) {
    const first = half as 0 | 1;
    const target = `${name}.${part}`;
    const take = (source: string, kind: string) =>
      stored.arrange([`${both}_${source}`], ([tensor]) => {
        const rows = everySecond(`${target}.${kind}`, tensor!, 1, first);
        return source === "blocks" ? asWords(rows.name, rows) : rows;
      });
    take("bias", "bias");
    if (isPlain) {
      stored.arrange([both], ([tensor]) => {
        const count = tensor!.shape[2]! / 2;
        return transposed(`${target}.weight`, tensor!, { first, count, step: 2 });
      });
    } else {
      take("blocks", "weight");
      take("scales", "scales");
    }
  }
  stored.rename({ [`${down}_bias`]: `${down}.bias` });
  if (isPlain) {
    stored.arrange([down], ([tensor]) =>
      transposed(`${down}.weight`, tensor!, { first: 0, count: tensor!.shape[2]! }),
    );
  } else {
    stored.arrange([`${down}_blocks`], ([tensor]) => asWords(`${down}.weight`, tensor!));
    stored.rename({ [`${down}_scales`]: `${down}.scales` });
  }
}
