// The planner's choices on several Macs, for docs/mac.md. Models are sketched from headers with the shapes of their
// 4-bit weights in groups of 64: nothing is downloaded or allocated.
import { mkdtempSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findLibrary } from "../ffi/native.ts";
import { openDevice } from "../src/device/open.ts";
import { defaultEngineOptions } from "../src/engine/protocol.ts";
import { openMlx } from "../src/mlx/runtime.ts";
import { machineOf, needsOf } from "../src/worker/plan.ts";
import {
  limitsOf,
  type Machine,
  type ModelNeeds,
  NoMemoryError,
  planMemory,
} from "../src/worker/planner.ts";

const GB = 2 ** 30;

/** Memory assumed for macOS and open programs. */
const OTHERS_BYTES = 3 * GB;

/** Metal's recommended working set: two thirds of the memory, or three quarters above 36 GB. */
const macs = [8, 16, 64].map((size) => {
  const totalBytes = size * GB;
  const usableBytes = Math.floor(size > 36 ? (totalBytes * 3) / 4 : (totalBytes * 2) / 3);
  const availableBytes = totalBytes - OTHERS_BYTES;
  return { size, facts: { totalBytes, usableBytes, availableBytes, activeBytes: 0 } };
});

type Shape = { dims: number; hidden: number; layers: number; heads: number; kvHeads: number };

const models: Readonly<Record<string, Shape & { tied: boolean }>> = {
  "Llama 3.2 1B": { dims: 2048, hidden: 8192, layers: 16, heads: 32, kvHeads: 8, tied: true },
  "Llama 3.2 3B": { dims: 3072, hidden: 8192, layers: 28, heads: 24, kvHeads: 8, tied: true },
  "Llama 3.1 8B": { dims: 4096, hidden: 14336, layers: 32, heads: 32, kvHeads: 8, tied: false },
  "Llama 3.3 70B": { dims: 8192, hidden: 28672, layers: 80, heads: 64, kvHeads: 8, tied: false },
};

type MacChoice = {
  mac: number;
  model: string;
  weightBytes: number;
  /** Undefined if the model is refused. */
  chosen?: {
    blocks: number;
    context: number;
    /** With --max-model-len auto. */
    longest: number;
    chunk: number;
    kvBytes: number;
    stepBytes: number;
    wiredBytes: number;
  };
};

/** Opens MLX on this thread. */
function macChoices(): MacChoice[] {
  openMlx(findLibrary(), { device: "cpu" });
  const device = openDevice("metal");
  const sketched = Object.entries(models).map(([model, shape]) => {
    const folder = mkdtempSync(join(tmpdir(), "mac-table-"));
    try {
      writeHeaders(folder, shape);
      return { model, needs: needsOf(device, folder, defaultEngineOptions).needs };
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
  const machine = machineOf(device);
  device.free();
  return macs.flatMap(({ size, facts }) =>
    sketched.map(({ model, needs }) =>
      choiceOf({ ...machine, facts }, { mac: size, model }, needs),
    ),
  );
}

function choiceOf(
  machine: Machine,
  named: Pick<MacChoice, "mac" | "model">,
  needs: ModelNeeds,
): MacChoice {
  const { weightBytes } = needs;
  try {
    const plan = planMemory(machine, needs, defaultEngineOptions);
    const longest = planMemory(machine, needs, { ...defaultEngineOptions, maxLength: "auto" });
    const { layout, maxLength: context, stepTokens: chunk, kvBytes, stepBytes } = plan;
    const blocks = Math.max(...layout.groups.map((group) => group.blocks));
    const { wiredBytes } = limitsOf(machine, [plan]);
    const sizes = { kvBytes, stepBytes, wiredBytes };
    return {
      ...named,
      weightBytes,
      chosen: { blocks, context, longest: longest.maxLength, chunk, ...sizes },
    };
  } catch (error) {
    if (!(error instanceof NoMemoryError)) throw error;
    return { ...named, weightBytes };
  }
}

export function macTable(): string {
  const head = [
    ...["Mac", "model, 4 bits", "weights", "KV blocks", "KV", "context", "with `auto`"],
    ...["chunk", "a step's arrays", "wired limit"],
  ];
  const gb = (bytes: number) => `${(bytes / GB).toFixed(bytes < GB ? 2 : 1)} GB`;
  const rows = macChoices().map(({ mac, model, weightBytes, chosen }) => {
    const first = [`${mac} GB`, model, gb(weightBytes)];
    if (!chosen) return [...first, "refused", "", "", "", "", "", ""];
    const { blocks, kvBytes, context, longest, chunk, stepBytes, wiredBytes } = chosen;
    return [
      ...[...first, blocks.toLocaleString("en"), gb(kvBytes), context.toLocaleString("en")],
      ...[longest.toLocaleString("en"), chunk, gb(stepBytes), gb(wiredBytes)],
    ];
  });
  const line = (cells: readonly unknown[]) => `| ${cells.join(" | ")} |`;
  return [line(head), `|${head.map(() => "---|").join("")}`, ...rows.map(line)].join("\n");
}

/** Writes the config and the headers of the weights as sparse files. */
function writeHeaders(
  folder: string,
  { dims, hidden, layers, heads, kvHeads, tied }: (typeof models)[string],
) {
  const [vocabulary, headDim] = [128_256, heads === 32 && dims === 2048 ? 64 : 128];
  const config = {
    model_type: "llama",
    hidden_size: dims,
    intermediate_size: hidden,
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: headDim,
    rms_norm_eps: 1e-5,
    vocab_size: vocabulary,
    max_position_embeddings: 131_072,
    rope_theta: 500_000,
    tie_word_embeddings: tied,
    quantization: { group_size: 64, bits: 4 },
  };
  const tensors: [name: string, dtype: "U32" | "F16", shape: number[]][] = [];
  const matrix = (name: string, rows: number, columns: number) => {
    tensors.push([`${name}.weight`, "U32", [rows, columns / 8]]);
    for (const part of ["scales", "biases"]) {
      tensors.push([`${name}.${part}`, "F16", [rows, columns / 64]]);
    }
  };
  const norm = (name: string) => tensors.push([`${name}.weight`, "F16", [dims]]);
  matrix("model.embed_tokens", vocabulary, dims);
  for (let i = 0; i < layers; i++) {
    const layer = `model.layers.${i}`;
    matrix(`${layer}.self_attn.q_proj`, heads * headDim, dims);
    matrix(`${layer}.self_attn.k_proj`, kvHeads * headDim, dims);
    matrix(`${layer}.self_attn.v_proj`, kvHeads * headDim, dims);
    matrix(`${layer}.self_attn.o_proj`, dims, heads * headDim);
    matrix(`${layer}.mlp.gate_proj`, hidden, dims);
    matrix(`${layer}.mlp.up_proj`, hidden, dims);
    matrix(`${layer}.mlp.down_proj`, dims, hidden);
    norm(`${layer}.input_layernorm`);
    norm(`${layer}.post_attention_layernorm`);
  }
  norm("model.norm");
  if (!tied) matrix("lm_head", vocabulary, dims);
  let end = 0;
  const entries = tensors.map(([name, dtype, shape]) => {
    const begin = end;
    end += shape.reduce((a, b) => a * b, dtype === "U32" ? 4 : 2);
    return [name, { dtype, shape, data_offsets: [begin, end] }];
  });
  const header = Buffer.from(JSON.stringify(Object.fromEntries(entries)));
  const file = join(folder, "model.safetensors");
  const length = Buffer.from(BigUint64Array.of(BigInt(header.length)).buffer);
  writeFileSync(join(folder, "config.json"), JSON.stringify(config));
  writeFileSync(file, Buffer.concat([length, header]));
  truncateSync(file, 8 + header.length + end);
}
