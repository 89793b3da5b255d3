// What scripts/bench/gpu.ts writes as JSON.
import type { Against, Figures, Memory } from "./figures.ts";
import type { PrefillGap } from "./prefill-gap.ts";
import type { Load } from "./systems.ts";

/** Of one system at one load. */
export type Result = Load & {
  system: string;
  best?: Figures;
  rounds: Figures[];
  error?: string;
  /** By a peer's name; a peer has none. */
  against: Record<string, Against>;
};

export type Report = {
  model: string;
  device: string;
  mlxVersion: string;
  dtype: string;
  tokenBudget: number | undefined;
  memory: Memory;
  /** Of the peers, by name. */
  versions: Record<string, string>;
  results: Result[];
  verdict?: string;
  prefillGap: PrefillGap[];
};
