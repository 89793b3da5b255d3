// The JSON output of scripts/bench/gpu.ts.
import type { Against, Figures, Memory } from "./figures.ts";
import type { PrefillGap } from "./prefill-gap.ts";
import type { Load } from "./systems.ts";

/** Results of one system at one load. */
export type Result = Load & {
  system: string;
  best?: Figures;
  rounds: Figures[];
  error?: string;
  /** By peer; absent for peers themselves. */
  against: Record<string, Against>;
};

export type Report = {
  model: string;
  device: string;
  mlxVersion: string;
  dtype: string;
  tokenBudget: number | undefined;
  memory: Memory;
  /** By peer. */
  versions: Record<string, string>;
  results: Result[];
  verdict?: string;
  prefillGap: PrefillGap[];
};
