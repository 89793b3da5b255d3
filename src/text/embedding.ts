// Detects embedding models and their pooling, from sentence-transformers' files next to the weights.
import { z } from "zod";
import { LoadError } from "../files/load-error.ts";
import { type ReadText, sentenceModules } from "./sentence-modules.ts";

export type Embedding = {
  pooling: "last" | "mean";
  /** Whether vectors are L2-normalized. */
  normalize: boolean;
};

const PoolingConfig = z.object({
  /** Set by newer versions of sentence-transformers; older versions write a flag per mode instead. */
  pooling_mode: z.string().optional(),
  pooling_mode_lasttoken: z.boolean().optional(),
  pooling_mode_mean_tokens: z.boolean().optional(),
});

export function embeddingOf(text: ReadText): Embedding | undefined {
  const modules = sentenceModules(text);
  const pooling = modules.config("Pooling");
  if (!pooling) return undefined;
  const { data: config = {} } = PoolingConfig.safeParse(pooling.json);
  const normalize = modules.has("Normalize");
  const { pooling_mode: mode } = config;
  if (mode === "lasttoken" || config.pooling_mode_lasttoken) return { pooling: "last", normalize };
  if (mode === "mean" || config.pooling_mode_mean_tokens) return { pooling: "mean", normalize };
  throw new LoadError(`${pooling.file}: expected pooling of the last token or the mean`);
}
