// Lists the supported architectures, by model_type.

import { LoadError, quoted } from "../files/load-error.ts";
import { afm7 } from "./archs/afm7.ts";
import { afmoe } from "./archs/afmoe.ts";
import { apertus } from "./archs/apertus.ts";
import { baichuanM1 } from "./archs/baichuan-m1.ts";
import { bailingHybrid } from "./archs/bailing-hybrid.ts";
import { bailingMoe } from "./archs/bailing-moe.ts";
import { bailingMoeLinear } from "./archs/bailing-moe-linear.ts";
import { bailingMoeV3 } from "./archs/bailing-moe-v3.ts";
import { bitnet } from "./archs/bitnet.ts";
import { cohere } from "./archs/cohere.ts";
import { cohere2 } from "./archs/cohere2.ts";
import { dbrx } from "./archs/dbrx.ts";
import { deepseek } from "./archs/deepseek.ts";
import { deepseekV2 } from "./archs/deepseek-v2.ts";
import { deepseekV3 } from "./archs/deepseek-v3.ts";
import { dots1 } from "./archs/dots1.ts";
import { ernie45Moe } from "./archs/ernie4-5-moe.ts";
import { exaone } from "./archs/exaone.ts";
import { exaoneMoe } from "./archs/exaone-moe.ts";
import { exaone4 } from "./archs/exaone4.ts";
import { falconH1 } from "./archs/falcon-h1.ts";
import { gear } from "./archs/gear.ts";
import { gemma } from "./archs/gemma.ts";
import { gemma2 } from "./archs/gemma2.ts";
import { gemma3 } from "./archs/gemma3.ts";
import { gemma3Text } from "./archs/gemma3-text.ts";
import { gemma3n } from "./archs/gemma3n.ts";
import { gemma4, gemma4Unified } from "./archs/gemma4.ts";
import { gemma4Text } from "./archs/gemma4-text.ts";
import { glm } from "./archs/glm.ts";
import { glm4 } from "./archs/glm4.ts";
import { glm4Moe } from "./archs/glm4-moe.ts";
import { glm4MoeLite } from "./archs/glm4-moe-lite.ts";
import { gptBigcode } from "./archs/gpt-bigcode.ts";
import { gptNeox } from "./archs/gpt-neox.ts";
import { gptOss } from "./archs/gpt-oss.ts";
import { gpt2 } from "./archs/gpt2.ts";
import { gptj } from "./archs/gptj.ts";
import { granite } from "./archs/granite.ts";
import { graniteMoe } from "./archs/granitemoe.ts";
import { graniteMoeHybrid } from "./archs/granitemoehybrid.ts";
import { helium } from "./archs/helium.ts";
import { hunyuan, hunyuanV1Moe } from "./archs/hunyuan.ts";
import { hunyuanV1Dense } from "./archs/hunyuan-v1-dense.ts";
import { internlm2 } from "./archs/internlm2.ts";
import { iquestLoopCoder } from "./archs/iquestloopcoder.ts";
import { jamba } from "./archs/jamba.ts";
import { kimiK3 } from "./archs/kimi-k3.ts";
import { kimiLinear } from "./archs/kimi-linear.ts";
import { kimiVl } from "./archs/kimi-vl.ts";
import { klear } from "./archs/klear.ts";
import { laguna } from "./archs/laguna.ts";
import { lfm2 } from "./archs/lfm2.ts";
import { lfm2Moe } from "./archs/lfm2-moe.ts";
import { lfm2Vl } from "./archs/lfm2-vl.ts";
import { lille130m } from "./archs/lille-130m.ts";
import { llama } from "./archs/llama.ts";
import { llama4 } from "./archs/llama4.ts";
import { longcatFlash } from "./archs/longcat-flash.ts";
import { longcatFlashNgram } from "./archs/longcat-flash-ngram.ts";
import { mamba } from "./archs/mamba.ts";
import { mamba2 } from "./archs/mamba2.ts";
import { mellum } from "./archs/mellum.ts";
import { mimoV2Flash } from "./archs/mimo-v2-flash.ts";
import { minicpm } from "./archs/minicpm.ts";
import { minicpm3 } from "./archs/minicpm3.ts";
import { minimax } from "./archs/minimax.ts";
import { ministral3 } from "./archs/ministral3.ts";
import { mistral } from "./archs/mistral.ts";
import { mistral3 } from "./archs/mistral3.ts";
import { mistral4 } from "./archs/mistral4.ts";
import { mixtral } from "./archs/mixtral.ts";
import { museGlimmer } from "./archs/muse-glimmer.ts";
import { nanbeige } from "./archs/nanbeige.ts";
import { nanochat } from "./archs/nanochat.ts";
import { nemotron } from "./archs/nemotron.ts";
import { nemotronH } from "./archs/nemotron-h.ts";
import { nemotronNas } from "./archs/nemotron-nas.ts";
import { olmo } from "./archs/olmo.ts";
import { olmoHybrid } from "./archs/olmo-hybrid.ts";
import { olmo2 } from "./archs/olmo2.ts";
import { olmo3 } from "./archs/olmo3.ts";
import { olmoe } from "./archs/olmoe.ts";
import { openelm } from "./archs/openelm.ts";
import { phi } from "./archs/phi.ts";
import { phi3 } from "./archs/phi3.ts";
import { phimoe } from "./archs/phimoe.ts";
import { phixtral } from "./archs/phixtral.ts";
import { plamo } from "./archs/plamo.ts";
import { plamo2 } from "./archs/plamo2.ts";
import { plamo3 } from "./archs/plamo3.ts";
import { qwen } from "./archs/qwen.ts";
import { qwen2 } from "./archs/qwen2.ts";
import { qwen2Moe } from "./archs/qwen2-moe.ts";
import { qwen2Vl, qwen3Vl } from "./archs/qwen2-vl.ts";
import { qwen3 } from "./archs/qwen3.ts";
import { qwen35 } from "./archs/qwen3-5.ts";
import { qwen3Moe } from "./archs/qwen3-moe.ts";
import { qwen3Next } from "./archs/qwen3-next.ts";
import { qwen3VlMoe } from "./archs/qwen3-vl-moe.ts";
import { recurrentGemma } from "./archs/recurrent-gemma.ts";
import { rwkv7 } from "./archs/rwkv7.ts";
import { smollm3 } from "./archs/smollm3.ts";
import { spark25 } from "./archs/spark2-5.ts";
import { stablelm } from "./archs/stablelm.ts";
import { starcoder2 } from "./archs/starcoder2.ts";
import { step3p5 } from "./archs/step3p5.ts";
import { talkie } from "./archs/talkie.ts";
import { youtuLlm } from "./archs/youtu-llm.ts";
import type { Architecture } from "./design/family.ts";

export const architectures: ReadonlyMap<string, Architecture> = new Map([
  ["Klear", klear],
  ["afm7", afm7],
  ["afmoe", afmoe],
  ["apertus", apertus],
  ["baichuan_m1", baichuanM1],
  ["bailing_hybrid", bailingHybrid],
  ["bailing_moe", bailingMoe],
  ["bailing_moe_linear", bailingMoeLinear],
  ["bailing_moe_v3", bailingMoeV3],
  ["bitnet", bitnet],
  ["cohere", cohere],
  ["cohere2", cohere2],
  ["dbrx", dbrx],
  ["deepseek", deepseek],
  ["deepseek_v2", deepseekV2],
  ["deepseek_v3", deepseekV3],
  ["dots1", dots1],
  ["ernie4_5", helium],
  ["ernie4_5_moe", ernie45Moe],
  ["exaone", exaone],
  ["exaone4", exaone4],
  ["exaone_moe", exaoneMoe],
  ["falcon_h1", falconH1],
  ["falcon_mamba", mamba],
  ["gear", gear],
  ["gemma", gemma],
  ["gemma2", gemma2],
  ["gemma3", gemma3],
  ["gemma3_text", gemma3Text],
  ["gemma3n", gemma3n],
  ["gemma4", gemma4],
  ["gemma4_text", gemma4Text],
  ["gemma4_unified", gemma4Unified],
  ["glm", glm],
  ["glm4", glm4],
  ["glm4_moe", glm4Moe],
  ["glm4_moe_lite", glm4MoeLite],
  ["gpt2", gpt2],
  ["gpt_bigcode", gptBigcode],
  ["gpt_neox", gptNeox],
  ["gpt_oss", gptOss],
  ["gptj", gptj],
  ["granite", granite],
  ["granitemoe", graniteMoe],
  ["granitemoehybrid", graniteMoeHybrid],
  ["helium", helium],
  ["hf_olmo", olmo],
  ["hunyuan", hunyuan],
  ["hunyuan_v1_dense", hunyuanV1Dense],
  ["hunyuan_v1_moe", hunyuanV1Moe],
  ["internlm2", internlm2],
  ["internlm3", llama],
  ["iquestcoder", llama],
  ["iquestloopcoder", iquestLoopCoder],
  ["jamba", jamba],
  ["joyai_llm_flash", deepseekV3],
  ["kimi_k2", deepseekV3],
  ["kimi_k25", kimiVl],
  ["kimi_k3", kimiK3],
  ["kimi_linear", kimiLinear],
  ["kimi_vl", kimiVl],
  ["laguna", laguna],
  ["lfm2", lfm2],
  ["lfm2-vl", lfm2Vl],
  ["lfm2_moe", lfm2Moe],
  ["lfm2_vl", lfm2Vl],
  ["lille-130m", lille130m],
  ["llama", llama],
  ["llama4", llama4],
  ["llama4_text", llama4],
  ["llava", mistral3],
  ["longcat_flash", longcatFlash],
  ["longcat_flash_ngram", longcatFlashNgram],
  ["mamba", mamba],
  ["mamba2", mamba2],
  ["mellum", mellum],
  ["mimo", qwen2],
  ["mimo_v2_flash", mimoV2Flash],
  ["minicpm", minicpm],
  ["minicpm3", minicpm3],
  ["minimax", minimax],
  ["minimax_m2", minimax],
  ["ministral3", ministral3],
  ["mistral", mistral],
  ["mistral3", mistral3],
  ["mistral4", mistral4],
  ["mixtral", mixtral],
  ["muse_glimmer", museGlimmer],
  ["nanbeige", nanbeige],
  ["nanochat", nanochat],
  ["nemotron", nemotron],
  ["nemotron-nas", nemotronNas],
  ["nemotron_h", nemotronH],
  ["olmo", olmo],
  ["olmo2", olmo2],
  ["olmo3", olmo3],
  ["olmo_hybrid", olmoHybrid],
  ["olmoe", olmoe],
  ["openelm", openelm],
  ["phi", phi],
  ["phi-msft", phixtral],
  ["phi3", phi3],
  ["phimoe", phimoe],
  ["phixtral", phixtral],
  ["pixtral", mistral3],
  ["plamo", plamo],
  ["plamo2", plamo2],
  ["plamo3", plamo3],
  ["qwen", qwen],
  ["qwen2", qwen2],
  ["qwen2_5_vl", qwen2Vl],
  ["qwen2_moe", qwen2Moe],
  ["qwen2_vl", qwen2Vl],
  ["qwen3", qwen3],
  ["qwen3_5", qwen35],
  ["qwen3_5_moe", qwen35],
  ["qwen3_moe", qwen3Moe],
  ["qwen3_next", qwen3Next],
  ["qwen3_vl", qwen3Vl],
  ["qwen3_vl_moe", qwen3VlMoe],
  ["recurrent_gemma", recurrentGemma],
  ["rwkv7", rwkv7],
  ["seed_oss", llama],
  ["smollm3", smollm3],
  ["solar_open", glm4Moe],
  ["spark2_5", spark25],
  ["stablelm", stablelm],
  ["starcoder2", starcoder2],
  ["step3p5", step3p5],
  ["talkie", talkie],
  ["telechat3", llama],
  ["xverse", llama],
  ["youtu_llm", youtuLlm],
]);

export function architectureOf(modelType: unknown): Architecture {
  if (typeof modelType !== "string") throw new LoadError("config.json: expected a model_type");
  const found = architectures.get(modelType);
  if (found) return found;
  const known = [...architectures.keys()].join(", ");
  throw new LoadError(`model_type ${quoted(modelType)} is not supported; there are ${known}`);
}
