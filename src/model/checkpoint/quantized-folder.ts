// Converts folders quantized by other tools to MLX's layout: `name`.weight, `name`.scales and `name`.biases, or one
// dense `name`.weight if MLX has no lossless layout. Tensors are converted when they are read.
import { z } from "zod";
import { isObject } from "../../files/json.ts";
import { LoadError, quoted } from "../../files/load-error.ts";
import { parseConfig } from "./config.ts";
import { AwqConfig, awq } from "./formats/awq.ts";
import { BitnetConfig, bitnet } from "./formats/bitnet.ts";
import { CompressedTensorsConfig, compressedTensors } from "./formats/compressed-tensors.ts";
import type { Tensors } from "./formats/folder-tensors.ts";
import { Fp8Config, fp8 } from "./formats/fp8.ts";
import { GptqConfig, gptq } from "./formats/gptq.ts";
import type { StoredTensor } from "./stored/tensor.ts";

type Config = Readonly<Record<string, unknown>>;

/** Replaces the map's tensors of one quantization format by tensors in MLX's layouts. */
type Format = (config: unknown, tensors: Tensors) => void;

function format<T extends z.ZodType>(
  schema: T,
  convert: (config: z.infer<T>, tensors: Tensors) => void,
): Format {
  const within = z.looseObject({ quantization_config: schema });
  return (config, tensors) => {
    const parsed = parseConfig(within, { quantization_config: config });
    convert(parsed.quantization_config as z.infer<T>, tensors);
  };
}

/** Formats by quantization_config.quant_method. */
const formats = new Map<string, Format>([
  ["awq", format(AwqConfig, awq)],
  ["bitnet", format(BitnetConfig, bitnet)],
  ["compressed-tensors", format(CompressedTensorsConfig, compressedTensors)],
  ["fbgemm_fp8", format(Fp8Config, fp8)],
  ["fp8", format(Fp8Config, fp8)],
  ["gptq", format(GptqConfig, gptq)],
  // OpenAI's mxfp4 is not converted here: the gpt-oss architecture rearranges these tensors.
  ["mxfp4", () => {}],
]);

/** Returns the tensors under MLX's names and in MLX's layouts. */
export function asMlxLayout(
  config: Config,
  tensors: ReadonlyMap<string, StoredTensor>,
): ReadonlyMap<string, StoredTensor> {
  const found = quantizationOf(config);
  if (found?.quant_method === undefined) return tensors;
  const { quant_method: method } = found;
  const convert = typeof method === "string" ? formats.get(method) : undefined;
  if (!convert) {
    const known = [...formats.keys()].join(", ");
    const shown = typeof method === "string" ? quoted(method) : typeof method;
    throw new LoadError(
      `config.json: quantization_config.quant_method ${shown} is not supported; there are ${known}`,
    );
  }
  const converted = new Map(tensors);
  convert(found, converted);
  return converted;
}

/** Returns another tool's quantization; undefined for MLX's own folders, recognized by the key `quantization`. */
function quantizationOf(config: Config): Config | undefined {
  if (isObject(config.quantization)) return undefined;
  const text = isObject(config.text_config) ? config.text_config : {};
  return [config.quantization_config, text.quantization_config].find(isObject);
}
