// Preloaded into a process of mlx-serve: SIGUSR2 causes errors outside any request, and the shutdown fails after it.
import { LazyBatches } from "../../src/http/frame/lazy-batches.ts";

process.on("SIGUSR2", () => {
  LazyBatches.prototype.stop = () => Promise.reject(new Error("batches that do not stop"));
  void Promise.reject(new Error("a rejection"));
  throw new Error("an exception");
});
