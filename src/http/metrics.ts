// The metrics for Prometheus. Gauges are read from the engine's shared memory when they are scraped, so they
// are exact and cost nothing in between.
import { Counter, Gauge, Histogram, Registry } from "prom-client";
import type { Priority, StepReport } from "../engine/protocol.ts";
import type { Admission } from "../serve/admission.ts";
import type { Usage } from "../serve/answers.ts";
import type { ServedModels } from "../serve/models.ts";

/** The measurements of one generation request. */
export type RequestTrack = {
  /** Called once the model is known. */
  model(name: string): void;
  first(sinceStartMs: number, queueMs: number): void;
  tokens(count: number, ms: number): void;
  end(outcome: Outcome, usage: Usage | undefined): void;
};

export type Outcome = "done" | "refused" | "gone" | "failed";

const seconds = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120];
const tokenSeconds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5];

export class Metrics {
  readonly #registry = new Registry();
  readonly #requests: Counter<"tier" | "outcome">;
  readonly #inProgress: Gauge<"tier">;
  readonly #steps: Counter<"model">;
  readonly #preemptions: Counter<"model">;
  readonly #promptTokens: Counter<"model">;
  readonly #cachedTokens: Counter<"model">;
  readonly #generatedTokens: Counter<"model">;
  readonly #firstToken: Histogram<"model">;
  readonly #interToken: Histogram<"model">;
  readonly #queue: Histogram<"model">;
  readonly #whole: Histogram<"model">;

  constructor(models: ServedModels, admission: Admission) {
    const registers = [this.#registry];
    const model = ["model"] as const;
    const counter = (name: string, help: string) =>
      new Counter({ name: `mlx_serve_${name}`, help, labelNames: model, registers });
    const histogram = (name: string, help: string, buckets: number[]) =>
      new Histogram({ name: `mlx_serve_${name}`, help, labelNames: model, buckets, registers });
    const gauge = (name: string, help: string, collect: (set: Gauge<"model" | "state">) => void) =>
      new Gauge({
        name: `mlx_serve_${name}`,
        help,
        labelNames: ["model", "state"],
        registers,
        collect() {
          // An unloaded model must not leave its last value behind.
          this.reset();
          collect(this);
        },
      });
    this.#requests = new Counter({
      name: "mlx_serve_requests_total",
      help: "Finished generation requests, by tier and outcome.",
      labelNames: ["tier", "outcome"],
      registers,
    });
    this.#inProgress = new Gauge({
      name: "mlx_serve_requests_in_progress",
      help: "Generation requests in progress, by tier.",
      labelNames: ["tier"],
      registers,
    });
    for (const tier of ["HIGH", "NORMAL", "LOW"]) this.#inProgress.set({ tier }, 0);
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
        set.set({ model: info.model }, blocks.held / blocks.total);
      }
    });
    this.#steps = counter("steps_total", "Forward passes over a batch.");
    this.#preemptions = counter("preemptions_total", "Preempted sequences.");
    this.#promptTokens = counter(
      "prompt_tokens_total",
      "Prompt tokens: the prefix cache's queries.",
    );
    this.#cachedTokens = counter(
      "prefix_hit_tokens_total",
      "Prompt tokens found in the prefix cache.",
    );
    this.#generatedTokens = counter("generated_tokens_total", "Generated tokens.");
    this.#firstToken = histogram("first_token_seconds", "Time to first token (TTFT).", seconds);
    this.#interToken = histogram("inter_token_seconds", "Inter-token latency.", tokenSeconds);
    this.#queue = histogram(
      "queue_seconds",
      "Time in the queue before a request first ran.",
      seconds,
    );
    this.#whole = histogram("request_seconds", "Time to the last token.", seconds);
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  /** In Prometheus' text format. */
  text(): Promise<string> {
    return this.#registry.metrics();
  }

  step({ model, preempted }: StepReport): void {
    this.#steps.inc({ model });
    this.#preemptions.inc({ model }, preempted);
  }

  begin(tier: Priority): RequestTrack {
    const start = performance.now();
    let labels: { model: string } | undefined;
    this.#inProgress.inc({ tier });
    return {
      model: (model) => {
        labels = { model };
      },
      first: (sinceStartMs, queueMs) => {
        this.#firstToken.observe(labels!, sinceStartMs / 1000);
        this.#queue.observe(labels!, queueMs / 1000);
      },
      tokens: (count, ms) => {
        for (let i = 0; i < count; i++) this.#interToken.observe(labels!, ms / count / 1000);
      },
      end: (outcome, usage) => {
        this.#inProgress.dec({ tier });
        this.#requests.inc({ tier, outcome });
        if (!labels || !usage) return;
        this.#promptTokens.inc(labels, usage.promptTokens);
        this.#cachedTokens.inc(labels, usage.cachedTokens);
        this.#generatedTokens.inc(labels, usage.completionTokens);
        if (outcome === "done") this.#whole.observe(labels, (performance.now() - start) / 1000);
      },
    };
  }
}
