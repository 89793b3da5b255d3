// Measures this server, as `mlx-serve bench` does.
import { useState } from "hono/jsx/dom";
import type { ErrorResponse } from "../api/error.ts";
import type { BenchEvent, BenchRequest } from "../api/owner/bench.ts";
import { DataTable, type TableColumn } from "./parts/data-table.tsx";
import { Problem, SelectField, TextField } from "./parts/form.tsx";
import { oneDigit } from "./parts/numbers.ts";
import { ask, messageOf, serverEvents } from "./parts/server.ts";
import { session } from "./parts/session.ts";
import { Store, useStore } from "./parts/store.ts";

type Results = BenchEvent & { type: "results" };

type Run = {
  controller: AbortController | undefined;
  answered: number;
  total: number;
  results: Results | undefined;
  problem: string;
};

/** State of the benchmark. It outlives the page, so that the user can watch the engine page meanwhile. */
const run = new Store<Run>({
  ...{ controller: undefined, answered: 0, total: 0, results: undefined, problem: "" },
});

const what: Readonly<Record<BenchRequest["mode"], string>> = {
  compare: "the same requests one by one, then concurrently",
  single: "requests one by one",
  batched: "concurrent requests",
  sweep: "increasing concurrency",
  prefix: "a long prefix, uncached and cached",
  mixed: "long prompts arriving while answers stream",
  priority: "a few high-priority requests among many low-priority ones",
};

async function measure(body: object): Promise<void> {
  const controller = new AbortController();
  const change = (next: Partial<Run>) => run.set({ ...run.value, ...next });
  change({ controller, answered: 0, total: 0, problem: "" });
  try {
    const response = await ask("/bench", { body, signal: controller.signal });
    for await (const { data } of serverEvents(response)) {
      const event = JSON.parse(data) as BenchEvent | (ErrorResponse & { type: "error" });
      if (event.type === "error") throw new Error(event.error.message);
      if (event.type === "progress") change({ answered: event.answered, total: event.total });
      else change({ results: event });
    }
  } catch (error) {
    if (!controller.signal.aborted) change({ problem: messageOf(error) });
  }
  change({ controller: undefined });
}

export function BenchPage() {
  const { models } = useStore(session);
  const { controller, answered, total, results, problem } = useStore(run);
  const [model, setModel] = useState(models[0] ?? "default");
  const [mode, setMode] = useState<BenchRequest["mode"]>("compare");
  const [requests, setRequests] = useState("8");
  const [tokens, setTokens] = useState("32");
  const [repeat, setRepeat] = useState("1");
  const start = () =>
    void measure({
      ...{ model, mode },
      requests: Number(requests),
      max_tokens: Number(tokens),
      repeat: Number(repeat),
    });
  return (
    <div class="page">
      <section class="card" aria-label="Benchmark">
        <h2>Benchmark</h2>
        <div class="line fields">
          <SelectField label="Model" value={model} options={models} onChange={setModel} />
          <SelectField
            label="Mode"
            value={mode}
            options={Object.entries(what).map(
              ([each, text]) => [each, `${each}: ${text}`] as const,
            )}
            onChange={(next) => setMode(next as BenchRequest["mode"])}
          />
          <TextField label="Requests" inputMode="numeric" value={requests} onChange={setRequests} />
          <TextField label="Tokens" inputMode="numeric" value={tokens} onChange={setTokens} />
          <TextField label="Repeat" inputMode="numeric" value={repeat} onChange={setRepeat} />
          {controller ? (
            <button type="button" class="stop" onClick={() => controller.abort()}>
              Stop
            </button>
          ) : (
            <button type="button" class="main" onClick={start}>
              Run
            </button>
          )}
        </div>
        <p class="note">The requests run as the owner, and share the engine with all others.</p>
        {controller && (
          <progress aria-label="Progress of the benchmark" value={answered} max={total || 1} />
        )}
        <Problem text={problem} />
      </section>
      {results && <ResultsView results={results} />}
    </div>
  );
}

type Result = Results["results"][number];

const columns: readonly TableColumn<Result>[] = [
  { title: "Mode", cell: ({ mode }) => mode },
  { title: "At once", isNumber: true, cell: ({ concurrency }) => String(concurrency) },
  ...(
    [
      ["Tokens/s", "tokens_per_second"],
      ["First token p50, ms", "p50_ttft_ms"],
      ["p99", "p99_ttft_ms"],
      ["Between tokens p50, ms", "p50_inter_token_ms"],
      ["p99", "p99_inter_token_ms"],
    ] as const
  ).map(([title, field]) => ({
    ...{ title, isNumber: true },
    cell: (result: Result) => oneDigit(result[field]),
  })),
];

function ResultsView({ results: { results, verdict, picture } }: { results: Results }) {
  return (
    <section class="card" aria-label="Results">
      <h2>{verdict}</h2>
      <img class="plot" alt={verdict} src={`data:image/svg+xml,${encodeURIComponent(picture)}`} />
      <DataTable
        label="Table of results"
        rows={results}
        columns={columns}
        keyOf={({ mode, concurrency }) => `${mode} ${concurrency}`}
      />
    </section>
  );
}
