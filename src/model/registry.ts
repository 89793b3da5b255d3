// Which architectures there are, by the model_type of their configuration.

import { LoadError, quoted } from "../files/load-error.ts";
import { bailingHybrid } from "./archs/bailing-hybrid.ts";
import { bailingMoe } from "./archs/bailing-moe.ts";
import { bailingMoeLinear } from "./archs/bailing-moe-linear.ts";
import { bailingMoeV3 } from "./archs/bailing-moe-v3.ts";
import { deepseek } from "./archs/deepseek.ts";
import { deepseekV2 } from "./archs/deepseek-v2.ts";
import { deepseekV3 } from "./archs/deepseek-v3.ts";
import { dots1 } from "./archs/dots1.ts";
import { ernie45Moe } from "./archs/ernie4-5-moe.ts";
import { exaoneMoe } from "./archs/exaone-moe.ts";
import { falconH1 } from "./archs/falcon-h1.ts";
import { gemma2 } from "./archs/gemma2.ts";
import { gemma3 } from "./archs/gemma3.ts";
import { gemma3Text } from "./archs/gemma3-text.ts";
import { gemma3n } from "./archs/gemma3n.ts";
import { gemma4 } from "./archs/gemma4.ts";
import { gemma4Text } from "./archs/gemma4-text.ts";
import { glm4Moe } from "./archs/glm4-moe.ts";
import { glm4MoeLite } from "./archs/glm4-moe-lite.ts";
import { gptOss } from "./archs/gpt-oss.ts";
import { granite } from "./archs/granite.ts";
import { graniteMoe } from "./archs/granitemoe.ts";
import { graniteMoeHybrid } from "./archs/granitemoehybrid.ts";
import { jamba } from "./archs/jamba.ts";
import { kimiLinear } from "./archs/kimi-linear.ts";
import { kimiVl } from "./archs/kimi-vl.ts";
import { klear } from "./archs/klear.ts";
import { lfm2 } from "./archs/lfm2.ts";
import { lfm2Moe } from "./archs/lfm2-moe.ts";
import { llama } from "./archs/llama.ts";
import { llama4 } from "./archs/llama4.ts";
import { mamba } from "./archs/mamba.ts";
import { mamba2 } from "./archs/mamba2.ts";
import { minimax } from "./archs/minimax.ts";
import { mistral } from "./archs/mistral.ts";
import { mixtral } from "./archs/mixtral.ts";
import { nemotronH } from "./archs/nemotron-h.ts";
import { olmoHybrid } from "./archs/olmo-hybrid.ts";
import { olmo2 } from "./archs/olmo2.ts";
import { olmo3 } from "./archs/olmo3.ts";
import { olmoe } from "./archs/olmoe.ts";
import { phi3 } from "./archs/phi3.ts";
import { plamo2 } from "./archs/plamo2.ts";
import { qwen2 } from "./archs/qwen2.ts";
import { qwen2Moe } from "./archs/qwen2-moe.ts";
import { qwen3 } from "./archs/qwen3.ts";
import { qwen35 } from "./archs/qwen3-5.ts";
import { qwen3Moe } from "./archs/qwen3-moe.ts";
import { qwen3Next } from "./archs/qwen3-next.ts";
import { qwen3VlMoe } from "./archs/qwen3-vl-moe.ts";
import { smollm3 } from "./archs/smollm3.ts";
import type { Model } from "./model.ts";
import type { Weights } from "./weights.ts";

export type Architecture = (config: unknown, weights: Weights) => Model;

export const architectures: ReadonlyMap<string, Architecture> = new Map([
  ["Klear", klear],
  ["bailing_hybrid", bailingHybrid],
  ["bailing_moe", bailingMoe],
  ["bailing_moe_linear", bailingMoeLinear],
  ["bailing_moe_v3", bailingMoeV3],
  ["deepseek", deepseek],
  ["deepseek_v2", deepseekV2],
  ["deepseek_v3", deepseekV3],
  ["dots1", dots1],
  ["ernie4_5_moe", ernie45Moe],
  ["exaone_moe", exaoneMoe],
  ["falcon_h1", falconH1],
  ["falcon_mamba", mamba],
  ["gemma2", gemma2],
  ["gemma3", gemma3],
  ["gemma3_text", gemma3Text],
  ["gemma3n", gemma3n],
  ["gemma4", gemma4],
  ["gemma4_text", gemma4Text],
  ["glm4_moe", glm4Moe],
  ["glm4_moe_lite", glm4MoeLite],
  ["gpt_oss", gptOss],
  ["granite", granite],
  ["granitemoe", graniteMoe],
  ["granitemoehybrid", graniteMoeHybrid],
  ["jamba", jamba],
  ["kimi_k2", deepseekV3],
  ["kimi_k25", kimiVl],
  ["kimi_linear", kimiLinear],
  ["kimi_vl", kimiVl],
  ["lfm2", lfm2],
  ["lfm2_moe", lfm2Moe],
  ["llama", llama],
  ["llama4", llama4],
  ["llama4_text", llama4],
  ["mamba", mamba],
  ["mamba2", mamba2],
  ["minimax", minimax],
  ["minimax_m2", minimax],
  ["mistral", mistral],
  ["mixtral", mixtral],
  ["nemotron_h", nemotronH],
  ["olmo2", olmo2],
  ["olmo3", olmo3],
  ["olmo_hybrid", olmoHybrid],
  ["olmoe", olmoe],
  ["phi3", phi3],
  ["plamo2", plamo2],
  ["qwen2", qwen2],
  ["qwen2_moe", qwen2Moe],
  ["qwen3", qwen3],
  ["qwen3_5", qwen35],
  ["qwen3_5_moe", qwen35],
  ["qwen3_moe", qwen3Moe],
  ["qwen3_next", qwen3Next],
  ["qwen3_vl_moe", qwen3VlMoe],
  ["smollm3", smollm3],
  ["solar_open", glm4Moe],
]);

export function architectureOf(modelType: unknown): Architecture {
  if (typeof modelType !== "string") throw new LoadError("config.json: expected a model_type");
  const found = architectures.get(modelType);
  if (found) return found;
  const known = [...architectures.keys()].join(", ");
  throw new LoadError(`model_type ${quoted(modelType)} is not supported; there are ${known}`);
}
