// The compute thread of a rank. It executes the server's messages in order, like every other rank. An error ends the
// thread and with it the group, because the other ranks would wait for it forever.
import { deserialize, serialize } from "bun:jsc";
import { existsSync } from "node:fs";
import { workerData } from "node:worker_threads";
import { openBlas } from "../../ffi/blas.ts";
import type { Device } from "../device/device.ts";
import { openDevice } from "../device/open.ts";
import { type Mailbox, receive } from "../engine/mailbox.ts";
import { noTraffic, type Traffic, type WorkerSetup } from "../engine/protocol.ts";
import { resolveModel } from "../hub/source.ts";
import { type Connections, MlxGroup } from "../mlx/distributed.ts";
import { openMlx } from "../mlx/runtime.ts";
import { openCheckpoint } from "../model/checkpoint/checkpoint.ts";
import { fingerprintOf } from "../model/checkpoint/fingerprint.ts";
import { loadModel } from "../model/load.ts";
import { Runner } from "../model/run/runner.ts";
import type { StageRunner } from "../model/run/stage-runner.ts";
import type { Launched } from "../model/run/step.ts";
import { StateStore } from "../model/state/state-store.ts";
import type { Parallel } from "../model/weights/stages.ts";
import { areLocal, connectionsOf } from "./connections.ts";
import type { FromRank, FromRankProcess, RankLoad, ToRank } from "./protocol.ts";
import { rankRunner } from "./runner.ts";

export type FromRankThread = Uint8Array | FromRankProcess;

type Loaded = {
  group: MlxGroup;
  runner: Runner | StageRunner;
  launched: Launched[];
  traffic: Traffic;
  free(): void;
};

/** Collectives are measured in one of this many steps, because measuring slows a step down. */
const MEASURED = 64;
let steps = 0;

const { mailbox, setup } = workerData as { mailbox: Mailbox; setup: WorkerSetup };
const tell = (message: FromRankThread) => mailbox.port.postMessage(message);
const reply = (message: FromRank) => tell(new Uint8Array(serialize(message)));

const { library, device: kind } = setup;
openBlas(library);
const { backend, device: info, mlxVersion } = openMlx(library, kind ? { device: kind } : {});
const device: Device = { ...openDevice(backend, info), compiles: false };
const groups = new Map<Connections, MlxGroup>();
const { connections } = groupFor("tensor");
const models = new Map<string, Loaded>();
const { usableBytes } = device.memory.facts();
tell({ kind: "formed", backend, mlxVersion, connections, usableBytes });
for (;;)
  handle(
    deserialize(receive<Uint8Array>(mailbox, Number.POSITIVE_INFINITY)!.buffer as ArrayBuffer),
  );

function handle(message: ToRank): void {
  switch (message.kind) {
    case "check":
      check(message);
      break;
    case "load":
      load(message);
      break;
    case "unload":
      models.get(message.model)?.free();
      models.delete(message.model);
      break;
    case "step": {
      const loaded = models.get(message.model)!;
      const { group, runner, launched } = loaded;
      group.isMeasured = steps++ % MEASURED === 0;
      counted(loaded, () => launched.push(runner.launch(message.inputs)));
      group.isMeasured = false;
      break;
    }
    case "draw":
      models.get(message.model)!.launched[0]!.draw(message.lookbacks);
      break;
    case "read": {
      const loaded = models.get(message.model)!;
      const { group, launched, traffic } = loaded;
      const outputs = counted(loaded, () => launched.shift()!.read());
      if (group.rank === 0) reply({ kind: "outputs", model: message.model, outputs, traffic });
      break;
    }
  }
}

/** Runs `work`, and adds the number, bytes and times of its collectives to the model's totals. */
function counted<T>({ group, traffic: own }: Loaded, work: () => T): T {
  const before = { ...group.traffic };
  const made = work();
  for (const key of Object.keys(own) as (keyof Traffic)[])
    own[key] += group.traffic[key] - before[key];
  return made;
}

/**
 * Returns the communication group for this kind of parallelism, connected at first use. Connecting takes all ranks:
 * all do it while they handle the same message.
 */
function groupFor(parallel: Parallel): MlxGroup {
  const kind = connectionsOf({ backend, parallel, areLocal: areLocal() });
  return groups.getOrInsertComputed(kind, () => new MlxGroup(kind, backend));
}

/** Returns the model's path on this host: MLX_SERVE_RANK_MODEL, the server's path, or that in the model cache. */
function ownPath({ model, path }: Pick<RankLoad, "model" | "path">): string {
  const told = process.env.MLX_SERVE_RANK_MODEL;
  if (told) return told;
  return existsSync(path) ? path : resolveModel(model, { allowPaths: false }).path;
}

function check({ fingerprint, ...asked }: ToRank & { kind: "check" }): void {
  const { model } = asked;
  const refuse = (reason: string) => reply({ kind: "refused", model, reason });
  try {
    const path = ownPath(asked);
    const checkpoint = openCheckpoint(path);
    const own = fingerprintOf(checkpoint);
    checkpoint.close();
    if (own === fingerprint) reply({ kind: "checked", model });
    else refuse(`${path} is not the server's model`);
  } catch (error) {
    refuse(error instanceof Error ? error.message : String(error));
  }
}

function load(asked: RankLoad): void {
  const { model: name, dtype, keepDequantized, layout, parallel, layers, warmUp } = asked;
  using made = new DisposableStack();
  const owned = <T extends { free(): void }>(each: T): T => made.adopt(each, () => each.free());
  const onProgress = (loadedBytes: number, totalBytes: number) =>
    reply({ kind: "progress", model: name, loadedBytes, totalBytes });
  const windows = layout.groups.map(({ window }) => window);
  const group = groupFor(parallel);
  const part = { group, parallel, layers, windows };
  const options = { device, dtype, keepDequantized, ...part, onProgress };
  const model = owned(loadModel(ownPath(asked), options));
  const store = owned(new StateStore(device, model.states, layout, model.dtype));
  const runner = owned(rankRunner(device, model, store, part));
  if (warmUp && runner instanceof Runner) runner.warmUp(warmUp.maxBatch, warmUp.maxLength);
  const kept = made.move();
  models.set(name, {
    group,
    runner,
    launched: [],
    traffic: { ...noTraffic },
    free: () => kept.dispose(),
  });
  reply({ kind: "loaded", model: name, weightBytes: model.weightBytes, kvBytes: store.bytes });
}
