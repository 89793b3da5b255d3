// The engine's Worker with a slow disk: each read of a model whose folder is named "slow" takes a while, and
// those of a folder named "stuck" take longer than a shutdown waits, as a native call might.
import { basename } from "node:path";
import { Models } from "../../src/worker/models.ts";

const READ_MS: Record<string, number> = { slow: 150, stuck: 8000 };

const { load } = Models.prototype;
Models.prototype.load = function (name, path, options, hooks) {
  const readMs = READ_MS[basename(path)] ?? 0;
  const onRead = () => {
    Bun.sleepSync(readMs);
    hooks.onRead?.();
  };
  return load.call(this, name, path, options, { ...hooks, onRead });
};

await import("../../src/worker/main.ts");
