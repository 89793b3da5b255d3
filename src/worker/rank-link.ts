// The engine Worker's side of models that run on ranks: sends the ranks their steps, and after a loss tells the next
// group of ranks to load the models again.
import { deserialize, serialize } from "bun:jsc";
import { type Mailbox, receive } from "../engine/mailbox.ts";
import { type Division, noTraffic, type Traffic, type WorkerData } from "../engine/protocol.ts";
import type { LoadOptions } from "../model/load.ts";
import type { Launched, StepInputs, StepOutputs } from "../model/run/step.ts";
import type { FromRank, FromRankUser, RankLoad, ToRank, ToRankUser } from "../ranks/protocol.ts";
import { stepsOnRanks } from "../ranks/runner.ts";
import type { StepRunner } from "./pipeline.ts";

/** How often a load on ranks pauses to serve other models and to notice a shutdown. */
const LOAD_POLL_MS = 20;

/** Timeout of a step, longer than any step takes; ranks that exceed it are restarted. */
const STEP_LIMIT_MS = 120_000;

/** Error of a load if a rank has exited or stalled. */
class RanksLostError extends Error {
  override name = "RanksLostError";
}

export class RankLink {
  readonly size: number;
  /** Number of ranks that share this machine's memory. */
  readonly localSize: number;
  readonly division: Division;
  /** Usable memory of each rank, once the group has formed. */
  memory: readonly number[] | undefined;
  readonly #mailbox: Mailbox;
  readonly #runners = new Map<string, RankRunner>();
  #isFormed = false;
  #formations = 0;

  constructor({ mailbox, size, localSize, division }: NonNullable<WorkerData["ranks"]>) {
    this.#mailbox = mailbox;
    this.size = size;
    this.localSize = localSize;
    this.division = division;
  }

  /** Number of the current group, undefined until it has formed. Models that earlier groups loaded are gone. */
  get formation(): number | undefined {
    return this.#isFormed ? this.#formations : undefined;
  }

  /** Returns once all ranks have joined. */
  awaitFormed({ onRead }: LoadHooks): void {
    for (; !this.#isFormed; this.poll(LOAD_POLL_MS)) onRead?.();
  }

  /** Opens a model's runner, which receives the ranks' messages about the model until it is freed. */
  open(model: RankModel): RankRunner {
    const { model: name } = model.load;
    const runner = new RankRunner(this, model, () => {
      this.#runners.delete(name);
      if (this.#isFormed) this.send({ kind: "unload", model: name });
    });
    this.#runners.set(name, runner);
    return runner;
  }

  /** Sends a message to every rank. */
  send(message: ToRank): void {
    const bytes = new Uint8Array(serialize(message));
    this.#mailbox.port.postMessage({ kind: "message", bytes } satisfies FromRankUser);
  }

  /** Asks the main thread to restart the ranks, which are alive but do not answer. */
  giveUp(reason: string): void {
    this.#mailbox.port.postMessage({ kind: "giveUp", reason } satisfies FromRankUser);
  }

  /** Reports the rank that refuses a model, or undefined once none does. */
  tellRefusal(model: string, rank: number | undefined): void {
    this.#mailbox.port.postMessage({ kind: "refused", model, rank } satisfies FromRankUser);
  }

  /** Handles all messages that have arrived, waiting up to `timeoutMs` for the first. */
  poll(timeoutMs: number): void {
    let message = receive<ToRankUser>(this.#mailbox, timeoutMs);
    for (; message; message = receive<ToRankUser>(this.#mailbox, 0)) this.#handle(message);
  }

  #handle(message: ToRankUser): void {
    switch (message.kind) {
      case "formed":
        this.#isFormed = true;
        this.memory = message.memory;
        this.#formations += 1;
        break;
      case "lost":
        this.#isFormed = false;
        for (const runner of this.#runners.values()) runner.lose(message.reason);
        break;
      case "message": {
        const said: FromRank = deserialize(message.bytes.buffer as ArrayBuffer);
        this.#runners.get(said.model)?.hear(message.rank, said);
        break;
      }
    }
  }
}

type RankModel = { load: RankLoad; fingerprint: string; stepLimitMs?: number };

type LoadHooks = Pick<LoadOptions, "onProgress" | "onRead">;

class RankRunner implements StepRunner {
  readonly depth: number;
  readonly stages: number | undefined;
  forwards = 0;
  readonly #link: RankLink;
  readonly #load: RankLoad;
  /** Fingerprint of the model's files. */
  readonly #fingerprint: string;
  readonly #close: () => void;
  readonly #stepLimitMs: number;
  /** `#asked`: number of the group told to load; `#checked`: ranks with the right files; `#held`: memory per rank. */
  #asked: number | undefined;
  readonly #checked = new Set<number>();
  readonly #held = new Map<number, { weightBytes: number; kvBytes: number }>();
  readonly #progress = new Map<number, [loadedBytes: number, totalBytes: number]>();
  readonly #outputs: StepOutputs[] = [];
  #loss: string | undefined;
  #refusedBy: number | undefined;
  /** Traffic of the first rank, over all steps. */
  traffic: Traffic = noTraffic;

  constructor(link: RankLink, model: RankModel, close: () => void) {
    const { load, fingerprint, stepLimitMs = STEP_LIMIT_MS } = model;
    const { depth, stages } = stepsOnRanks(load.parallel, link.size);
    this.#link = link;
    this.#stepLimitMs = stepLimitMs;
    this.#load = load;
    this.#fingerprint = fingerprint;
    this.stages = stages;
    this.depth = depth;
    this.#close = close;
  }

  /** Returns when every rank has loaded its part. */
  load({ onProgress, onRead }: LoadHooks): void {
    while (!this.isReady()) {
      if (this.#loss !== undefined) throw new RanksLostError(this.#loss);
      this.#link.poll(LOAD_POLL_MS);
      const sums = [0, 1].map((at) =>
        this.#progress.values().reduce((sum, each) => sum + each[at]!, 0),
      );
      if (sums[1]! > 0) onProgress?.(sums[0]!, sums[1]!);
      onRead?.();
    }
  }

  /** Memory held by all ranks together. */
  get held(): { weightBytes: number; kvBytes: number } {
    const all = [...this.#held.values()];
    return {
      weightBytes: all.reduce((sum, { weightBytes }) => sum + weightBytes, 0),
      kvBytes: all.reduce((sum, { kvBytes }) => sum + kvBytes, 0),
    };
  }

  /** Whether a step can be launched. Makes a new group load the model first; until that is done, returns false. */
  isReady(): boolean {
    this.#link.poll(0);
    const { formation, size } = this.#link;
    if (formation === undefined) return false;
    if (this.#asked !== formation) {
      this.#asked = formation;
      for (const each of [this.#checked, this.#held, this.#progress]) each.clear();
      const { model, path } = this.#load;
      this.#link.send({ kind: "check", model, path, fingerprint: this.#fingerprint });
    }
    return this.#held.size === size;
  }

  /** Returns the reason if all computed state was lost, once per loss; otherwise undefined. */
  takeLoss(): string | undefined {
    const loss = this.#loss;
    this.#loss = undefined;
    return loss;
  }

  /** Whether a rank has refused the model. Reset when the group forms again. */
  get isRefused(): boolean {
    return this.#refusedBy !== undefined;
  }

  #refuse(rank: number | undefined): void {
    if (rank === this.#refusedBy) return;
    this.#refusedBy = rank;
    this.#link.tellRefusal(this.#load.model, rank);
  }

  launch(inputs: StepInputs): Launched {
    const { model } = this.#load;
    const { formation } = this.#link;
    this.forwards += 1;
    this.#link.send({ kind: "step", model, inputs });
    const check = () => {
      if (this.#link.formation !== formation)
        throw new RanksLostError(this.#loss ?? "a rank is lost");
    };
    return {
      draw: (lookbacks) => {
        check();
        if (lookbacks.length > 0) this.#link.send({ kind: "draw", model, lookbacks });
      },
      read: () => {
        check();
        this.#link.send({ kind: "read", model });
        this.#awaitOutputs(check);
        return this.#outputs.shift()!;
      },
    };
  }

  #awaitOutputs(check: () => void): void {
    let limitMs = this.#stepLimitMs;
    while (this.#outputs.length === 0) {
      const startMs = performance.now();
      this.#link.poll(limitMs);
      check();
      limitMs -= performance.now() - startMs;
      if (limitMs > 0) continue;
      this.#link.giveUp(`a step of ${this.#load.model} was not answered in time`);
      limitMs = Number.POSITIVE_INFINITY;
    }
  }

  hear(rank: number, message: FromRank): void {
    switch (message.kind) {
      case "progress":
        this.#progress.set(rank, [message.loadedBytes, message.totalBytes]);
        break;
      case "loaded":
        this.#held.set(rank, message);
        break;
      case "checked":
        this.#checked.add(rank);
        if (this.#checked.size === this.#link.size)
          this.#link.send({ kind: "load", ...this.#load });
        break;
      case "refused":
        this.#loss = `rank ${rank}: ${message.reason}`;
        this.#refuse(rank);
        break;
      case "outputs":
        this.#outputs.push(message.outputs);
        this.traffic = message.traffic;
        break;
    }
  }

  lose(reason: string): void {
    this.#loss = reason;
    this.#refuse(undefined);
    this.#held.clear();
    this.#outputs.length = 0;
  }

  free(): void {
    this.#refuse(undefined);
    this.#close();
  }
}
