// Whether a model is an embedding model, and how it pools: read from sentence-transformers' files next to the
// weights.
import { z } from "zod";
import { LoadError } from "../files/load-error.ts";

export type Embedding = {
  pooling: "last" | "mean";
  /** Whether vectors are normalized to length 1. */
  normalize: boolean;
};

const Modules = z.array(z.object({ type: z.string(), path: z.string() }));

const PoolingConfig = z.object({
  pooling_mode_lasttoken: z.boolean().optional(),
  pooling_mode_mean_tokens: z.boolean().optional(),
});

/** `text` reads a file in the model's folder; undefined if it does not exist. */
export function embeddingOf(text: (name: string) => string | undefined): Embedding | undefined {
  const modules = Modules.safeParse(parsed(text("modules.json")));
  if (!modules.success) return undefined;
  const kinds = modules.data.map(({ type }) => type.split(".").at(-1));
  const pooling = modules.data[kinds.indexOf("Pooling")];
  // Paths that lead out of the model's folder are ignored.
  if (!pooling || !/^[\w-]+$/.test(pooling.path)) return undefined;
  const config = PoolingConfig.safeParse(parsed(text(`${pooling.path}/config.json`)));
  const normalize = kinds.includes("Normalize");
  if (config.data?.pooling_mode_lasttoken) return { pooling: "last", normalize };
  if (config.data?.pooling_mode_mean_tokens) return { pooling: "mean", normalize };
  throw new LoadError(
    `${pooling.path}/config.json: pooling of the last token or the mean is known`,
  );
}

function parsed(text: string | undefined): unknown {
  try {
    return text === undefined ? undefined : JSON.parse(text);
  } catch {
    return undefined;
  }
}
