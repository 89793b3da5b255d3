import type { ToolFormat } from "../../src/tools/format.ts";
import { functionGemma } from "../../src/tools/formats/function-gemma.ts";
import { gemma } from "../../src/tools/formats/gemma.ts";
import { harmony } from "../../src/tools/formats/harmony.ts";
import { hermes } from "../../src/tools/formats/hermes.ts";
import { llamaJson } from "../../src/tools/formats/llama-json.ts";
import { mistral, mistralList } from "../../src/tools/formats/mistral.ts";
import { olmo } from "../../src/tools/formats/olmo.ts";
import { functools, granite, phi } from "../../src/tools/formats/phi.ts";
import { pythonic } from "../../src/tools/formats/pythonic.ts";
import { qwenXml } from "../../src/tools/formats/qwen-xml.ts";

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
];
