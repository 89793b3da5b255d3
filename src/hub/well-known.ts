// Models to begin with, for those who have none yet: of each size one or two that many people use. All are repos of
// the hub that hold weights for MLX.

export type WellKnown = {
  readonly repo: string;
  /** Of the weights, about. */
  readonly bytes: number;
};

export const wellKnownModels: readonly WellKnown[] = [
  { repo: "mlx-community/gpt-oss-120b-MXFP4-Q8", bytes: 63.3e9 },
  { repo: "mlx-community/GLM-4.5-Air-4bit", bytes: 60.1e9 },
  { repo: "mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit", bytes: 44.8e9 },
  { repo: "mlx-community/Qwen3-30B-A3B-Instruct-2507-4bit", bytes: 17.2e9 },
  { repo: "mlx-community/gpt-oss-20b-MXFP4-Q8", bytes: 12.1e9 },
  { repo: "mlx-community/Qwen3-14B-4bit", bytes: 8.3e9 },
  { repo: "mlx-community/Qwen3-8B-4bit", bytes: 4.6e9 },
  { repo: "mlx-community/Qwen3-4B-Instruct-2507-4bit", bytes: 2.3e9 },
  { repo: "mlx-community/Qwen3-1.7B-4bit", bytes: 0.97e9 },
  { repo: "mlx-community/Qwen3-0.6B-4bit", bytes: 0.34e9 },
];
