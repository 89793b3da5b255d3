import { apertus } from "../../src/tools/formats/apertus.ts";
import { cohere } from "../../src/tools/formats/cohere.ts";
import { deepseek, deepseekV31 } from "../../src/tools/formats/deepseek.ts";
import { functionGemma, gemma4 } from "../../src/tools/formats/function-gemma.ts";
import { gemma } from "../../src/tools/formats/gemma.ts";
import { glm, glmCompact } from "../../src/tools/formats/glm.ts";
import { harmony } from "../../src/tools/formats/harmony.ts";
import { hermes, internlm, longcat } from "../../src/tools/formats/hermes.ts";
import { deepseekV4, deepseekV32, minimax } from "../../src/tools/formats/invoke.ts";
import { kimi } from "../../src/tools/formats/kimi.ts";
import { llamaJson } from "../../src/tools/formats/llama-json.ts";
import { mistral, mistralList, mistralThinking } from "../../src/tools/formats/mistral.ts";
import { hunyuan, minimaxM1, nemotron } from "../../src/tools/formats/nemotron.ts";
import { functools, granite, phi } from "../../src/tools/formats/phi.ts";
import { lfm, olmo } from "../../src/tools/formats/python-calls.ts";
import { pythonic } from "../../src/tools/formats/pythonic.ts";
import { qwenXml, seed } from "../../src/tools/formats/qwen-xml.ts";
import type { ToolFormat } from "../../src/tools/syntax/format.ts";

export const allFormats: readonly ToolFormat[] = [
  functionGemma,
  functools,
  gemma,
  granite,
  harmony,
  hermes,
  llamaJson,
  mistral,
  mistralList,
  olmo,
  phi,
  pythonic,
  qwenXml,
  deepseek,
  deepseekV31,
  deepseekV32,
  deepseekV4,
  gemma4,
  glm,
  glmCompact,
  kimi,
  lfm,
  minimax,
  nemotron,
  apertus,
  cohere,
  hunyuan,
  internlm,
  longcat,
  minimaxM1,
  mistralThinking,
  seed,
];
