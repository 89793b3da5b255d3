// The Prometheus metrics. Gauges are read from the engine's shared memory on each scrape, so they are exact and cost
// nothing in between. Metrics of requests are labelled with the API key's name: the owner sees all of them, other keys
// only their own.
import { Counter, Gauge, Histogram, type Metric, Registry } from "prom-client";
import {
  collectiveMs,
  noTraffic,
  type Priority,
  type StepReport,
  type Traffic,
} from "../../engine/protocol.ts";
import type { Caller } from "../../keys/key-ring.ts";
import type { Admission } from "../../serve/admission.ts";
import type { Usage } from "../../serve/answers.ts";
import type { ServedModels } from "../../serve/models.ts";

/** Records the measurements of one generation request. */
export type RequestTrack = {
  /** Sets the model's name; called once the model is known. */
  model(name: string): void;
  generated(): void;
  first(sinceStartMs: number, queueMs: number): void;
  tokens(count: number, ms: number): void;
  end(outcome: Outcome, usage: Usage | undefined): void;
};

/** A histogram. `limits`: upper bounds of buckets in seconds; `counts` has one more, for values above all limits. */
export type Latency = { name: string; limits: number[]; counts: number[]; count: number };

/** Usage of a key since the server's start. */
export type KeyUse = {
  requests: number;
  promptTokens: number;
  cachedTokens: number;
  generatedTokens: number;
};

export const noUse: KeyUse = { requests: 0, promptTokens: 0, cachedTokens: 0, generatedTokens: 0 };

export type Outcome = "done" | "refused" | "gone" | "failed";

const seconds = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120];
const tokenSeconds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5];

/** Label of requests that have no valid key. */
const NO_KEY = "";

export class Metrics {
  readonly #registry = new Registry();
  readonly #requests: Counter<"key" | "tier" | "outcome">;
  readonly #refusals: Counter<"key" | "status" | "reason">;
  readonly #inProgress: Gauge<"key" | "tier">;
  readonly #steps: Histogram<"model">;
  readonly #preemptions: Counter<"model">;
  readonly #collectives: Counter<"model">;
  readonly #sentBytes: Counter<"model">;
  readonly #collectiveSeconds: Counter<"model">;
  /** Traffic between the ranks (processes) of each model, cumulative as of the model's last step. */
  readonly #traffic = new Map<string, Traffic>();
  readonly #snapshotHits: Counter<"model">;
  readonly #snapshotMisses: Counter<"model">;
  readonly #promptTokens: Counter<"key" | "model">;
  readonly #cachedTokens: Counter<"key" | "model">;
  readonly #generatedTokens: Counter<"key" | "model">;
  readonly #firstToken: Histogram<"key" | "model">;
  readonly #interToken: Histogram<"key" | "model">;
  readonly #queue: Histogram<"key" | "model">;
  readonly #whole: Histogram<"key" | "model">;
  /** The metrics that have the label `key`. */
  readonly #ofKeys: readonly (Counter | Gauge | Histogram)[];

  constructor(models: ServedModels, admission: Admission) {
    const registers = [this.#registry];
    const perKey = ["key", "model"] as const;
    const counter = <T extends string>(name: string, help: string, labelNames: readonly T[]) =>
      new Counter({ name: `mlx_serve_${name}`, help, labelNames, registers });
    const histogram = <T extends string>(
      name: string,
      help: string,
      buckets: number[],
      labelNames: readonly T[],
    ) => new Histogram({ name: `mlx_serve_${name}`, help, labelNames, buckets, registers });
    const gauge = (name: string, help: string, collect: (set: Gauge<"model" | "state">) => void) =>
      new Gauge({
        name: `mlx_serve_${name}`,
        help,
        labelNames: ["model", "state"],
        registers,
        collect() {
          // Removes the values of unloaded models, which would otherwise stay.
          this.reset();
          collect(this);
        },
      });
    this.#requests = counter(
      "requests_total",
      "Finished generation requests, by key, tier and outcome.",
      ["key", "tier", "outcome"],
    );
    this.#refusals = counter(
      "refusals_total",
      "Requests that were refused or have failed, by key, status and reason.",
      ["key", "status", "reason"],
    );
    this.#inProgress = new Gauge({
      name: "mlx_serve_requests_in_progress",
      help: "Generation requests in progress, by key and tier.",
      labelNames: ["key", "tier"],
      registers,
    });
    new Gauge({
      name: "mlx_serve_http_requests_admitted",
      help: "Requests admitted to the queue or the engine.",
      registers,
      collect() {
        this.set(admission.count);
      },
    });
    gauge("requests_running", "Sequences that are running.", (set) => {
      for (const { info, load } of models.loaded()) set.set({ model: info.model }, load.running);
    });
    gauge("requests_waiting", "Sequences that are waiting.", (set) => {
      for (const { info, load } of models.loaded()) set.set({ model: info.model }, load.waiting);
    });
    gauge("kv_blocks", "KV blocks of 32 tokens: held by sequences, cached, free.", (set) => {
      for (const { info, blocks } of models.loaded()) {
        const { held, cached, free } = blocks;
        for (const [state, count] of Object.entries({ held, cached, free })) {
          set.set({ model: info.model, state }, count);
        }
      }
    });
    gauge("kv_shared_blocks", "Held blocks that more than one sequence shares.", (set) => {
      for (const { info, blocks } of models.loaded()) set.set({ model: info.model }, blocks.shared);
    });
    gauge("kv_usage_ratio", "The fraction of the blocks that sequences hold.", (set) => {
      for (const { info, blocks } of models.loaded()) {
        if (blocks.total > 0) set.set({ model: info.model }, blocks.held / blocks.total);
      }
    });
    gauge(
      "state_slots",
      "Slots of recurrent states: held by sequences, snapshots, free.",
      (set) => {
        for (const { info, slots } of models.loaded()) {
          if (!slots) continue;
          const { held, cached: snapshot, free } = slots;
          for (const [state, count] of Object.entries({ held, snapshot, free })) {
            set.set({ model: info.model, state }, count);
          }
        }
      },
    );
    gauge("snapshot_bytes", "Memory of the snapshots of recurrent states.", (set) => {
      for (const { info, slots } of models.loaded()) {
        if (slots) set.set({ model: info.model }, slots.cached * slots.bytes);
      }
    });
    this.#collectives = counter("collectives_total", "Collectives of the ranks.", ["model"]);
    this.#sentBytes = counter("collective_sent_bytes_total", "Bytes sent by rank 0.", ["model"]);
    this.#collectiveSeconds = counter(
      "collective_seconds_total",
      "Time in collectives, estimated from those of every 64th step.",
      ["model"],
    );
    this.#snapshotHits = counter(
      "snapshot_hits_total",
      "Sequences of models with recurrent layers that began from a snapshot.",
      ["model"],
    );
    this.#snapshotMisses = counter(
      "snapshot_misses_total",
      "Sequences that had cached blocks beyond their last snapshot.",
      ["model"],
    );
    this.#steps = histogram(
      "step_seconds",
      "Time of a step, a forward pass over a batch.",
      tokenSeconds,
      ["model"],
    );
    this.#preemptions = counter("preemptions_total", "Preempted sequences.", ["model"]);
    this.#promptTokens = counter(
      "prompt_tokens_total",
      "Prompt tokens: the prefix cache's queries.",
      perKey,
    );
    this.#cachedTokens = counter(
      "prefix_hit_tokens_total",
      "Prompt tokens found in the prefix cache.",
      perKey,
    );
    this.#generatedTokens = counter("generated_tokens_total", "Generated tokens.", perKey);
    this.#firstToken = histogram(
      "first_token_seconds",
      "Time to first token (TTFT).",
      seconds,
      perKey,
    );
    this.#interToken = histogram(
      "inter_token_seconds",
      "Inter-token latency.",
      tokenSeconds,
      perKey,
    );
    this.#queue = histogram(
      "queue_seconds",
      "Time in the queue before a request first ran.",
      seconds,
      perKey,
    );
    this.#whole = histogram("request_seconds", "Time to the last token.", seconds, perKey);
    this.#ofKeys = [
      ...[this.#requests, this.#refusals, this.#inProgress],
      ...[this.#promptTokens, this.#cachedTokens, this.#generatedTokens],
      ...[this.#firstToken, this.#interToken, this.#queue, this.#whole],
    ];
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  /** Returns the metrics that the caller may see, in Prometheus' text format. */
  async text({ name, owner }: Pick<Caller, "name" | "owner">): Promise<string> {
    if (owner) return await this.#registry.metrics();
    const own = new Registry();
    for (const metric of this.#ofKeys) {
      const all = await metric.get();
      const values = all.values.filter(({ labels }) => labels.key === name);
      const view = { name: all.name, get: async () => ({ ...all, values }) };
      own.registerMetric(view as unknown as Metric);
    }
    return await own.metrics();
  }

  /** Returns the usage of each key, by the key's name. */
  async use(): Promise<ReadonlyMap<string, KeyUse>> {
    const all = new Map<string, KeyUse>();
    const counters = {
      requests: this.#requests,
      promptTokens: this.#promptTokens,
      cachedTokens: this.#cachedTokens,
      generatedTokens: this.#generatedTokens,
    };
    for (const [field, counter] of Object.entries(counters)) {
      for (const { labels, value } of (await counter.get()).values) {
        const use = all.getOrInsertComputed(String(labels.key), () => ({ ...noUse }));
        use[field as keyof KeyUse] += value;
      }
    }
    return all;
  }

  /** Returns the histograms of request latencies, summed over keys and models. */
  async latencies(): Promise<Latency[]> {
    const named = {
      first_token: this.#firstToken,
      inter_token: this.#interToken,
      queue: this.#queue,
      request: this.#whole,
    };
    return await Promise.all(
      Object.entries(named).map(async ([name, histogram]) => {
        const { values } = await histogram.get();
        const total = (end: string, le?: number) =>
          values
            .filter(({ metricName }) => metricName?.endsWith(end))
            .filter(({ labels }) => (labels as { le?: number | string }).le === le)
            .reduce((sum, { value }) => sum + value, 0);
        const limits = name === "inter_token" ? tokenSeconds : seconds;
        const count = total("_count");
        const upTo = [...limits.map((limit) => total("_bucket", limit)), count];
        return { name, limits, counts: upTo.map((all, i) => all - (upTo[i - 1] ?? 0)), count };
      }),
    );
  }

  /** Removes the metrics of all keys, except `names` and keys with requests in progress. */
  async keepKeys(names: readonly string[]): Promise<void> {
    const { values: inProgress } = await this.#inProgress.get();
    const busy = inProgress.filter(({ value }) => value > 0).map(({ labels }) => labels.key);
    const kept = new Set<unknown>([NO_KEY, ...names, ...busy]);
    for (const metric of this.#ofKeys) {
      const { values } = await metric.get();
      for (const { le: _, ...labels } of values.map(({ labels }) => labels)) {
        if (!kept.has(labels.key)) metric.remove(labels);
      }
    }
  }

  step({ model, ms, preempted, snapshots, traffic }: StepReport): void {
    if (traffic) this.#countTraffic(model, traffic);
    this.#steps.observe({ model }, ms / 1000);
    this.#preemptions.inc({ model }, preempted);
    this.#snapshotHits.inc({ model }, snapshots.hits);
    this.#snapshotMisses.inc({ model }, snapshots.misses);
  }

  /** Adds the traffic since the last call. Restarted ranks count from 0, so a lower count means a restart. */
  #countTraffic(model: string, traffic: Traffic): void {
    const last = this.#traffic.get(model) ?? noTraffic;
    const before = traffic.collectives < last.collectives ? noTraffic : last;
    this.#traffic.set(model, traffic);
    this.#collectives.inc({ model }, traffic.collectives - before.collectives);
    this.#sentBytes.inc({ model }, traffic.bytes - before.bytes);
    const ms = collectiveMs(traffic) - collectiveMs(before);
    this.#collectiveSeconds.inc({ model }, Math.max(0, ms / 1000));
  }

  /** Counts a request that was answered with an error. */
  refused(key: string | undefined, status: number, reason: string): void {
    this.#refusals.inc({ key: key ?? NO_KEY, status, reason });
  }

  begin(key: string, tier: Priority): RequestTrack {
    const start = performance.now();
    let labels: { key: string; model: string } | undefined;
    this.#inProgress.inc({ key, tier });
    return {
      model: (model) => {
        labels = { key, model };
      },
      generated: () => this.#generatedTokens.inc(labels!),
      first: (sinceStartMs, queueMs) => {
        this.#firstToken.observe(labels!, sinceStartMs / 1000);
        this.#queue.observe(labels!, queueMs / 1000);
      },
      tokens: (count, ms) => {
        for (let i = 0; i < count; i++) this.#interToken.observe(labels!, ms / count / 1000);
      },
      end: (outcome, usage) => {
        this.#inProgress.dec({ key, tier });
        this.#requests.inc({ key, tier, outcome });
        if (!labels || !usage) return;
        this.#promptTokens.inc(labels, usage.promptTokens);
        this.#cachedTokens.inc(labels, usage.cachedTokens);
        if (outcome === "done") this.#whole.observe(labels, (performance.now() - start) / 1000);
      },
    };
  }
}
