// LFM 2 VL, which also sees: of such a file, the part that reads and writes text.
import { z } from "zod";
import { parseConfig } from "../config.ts";
import { unwrapText } from "../decoder.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { lfm2 } from "./lfm2.ts";

const Config = z.looseObject({ text_config: z.looseObject({}) });

export function lfm2Vl(config: unknown, weights: Weights): Model {
  const { text_config } = parseConfig(Config, config);
  unwrapText(weights);
  return lfm2({ model_type: "lfm2", ...text_config }, weights);
}
