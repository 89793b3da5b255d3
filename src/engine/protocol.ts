// What crosses the boundary between the main thread and the engine Worker, and nothing else does.

export type ToWorker = { kind: "inspect"; id: number } | { kind: "stop" };

export type FromWorker =
  | { kind: "ready" }
  | { kind: "inspected"; id: number; report: EngineReport }
  | { kind: "failed"; id: number; message: string }
  | { kind: "stopped" };

/** Given to the Worker when it starts. */
export type WorkerSetup = { library: string; device: "cpu" | "gpu" | undefined; trace: boolean };

export type EngineReport = {
  backend: "cpu" | "metal" | "cuda";
  mlxVersion: string;
  device: Record<string, string | number>;
  blas: { name: string; threads: number } | undefined;
  memoryLimitBytes: number;
  /** Of a float32 product as large as a layer's of the default model. */
  matmulGflops: number;
};
