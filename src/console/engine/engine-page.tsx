// The engine page: live throughput, steps, memory, latencies and requests.
import { useEffect } from "hono/jsx/dom";
import type { StateEvent } from "../../api/owner/engine.ts";
import { Problem } from "../parts/form.tsx";
import { bytes, oneDigit, percent, whole } from "../parts/numbers.ts";
import { useStore } from "../parts/store.ts";
import { BlockMapView } from "./block-map.tsx";
import type { EngineView, Step } from "./engine-view.ts";
import { closeFeed, engine, openFeed } from "./feed.ts";
import { Latencies } from "./latencies.tsx";
import { EndedTable, RequestTable, StoryView } from "./request-tables.tsx";
import { StepChart } from "./step-chart.tsx";

/** Window over which throughput is averaged. */
const RATE_MS = 3000;

export function EnginePage() {
  const view = useStore(engine);
  useEffect(() => {
    // A hidden tab releases its connection: browsers allow few per server.
    const follow = () => (document.hidden ? closeFeed() : openFeed());
    follow();
    document.addEventListener("visibilitychange", follow);
    return () => {
      document.removeEventListener("visibilitychange", follow);
      closeFeed();
    };
  }, []);
  const { state, steps, ended, story, problem, lost } = view;
  if (!state) return <p class="empty">{problem || "Connecting to the engine…"}</p>;
  return (
    <div class="page">
      <Problem text={problem === "" ? "" : `Not live: ${problem}`} />
      <Tiles view={view} state={state} />
      <section class="card" aria-label="Steps">
        <header>
          <h2>Steps</h2>
          <p class="note">
            decoded tokens in full colour, prompts in a paler one
            {lost > 0 && `; ${whole(lost)} were too many to show`}
          </p>
        </header>
        <StepChart steps={steps} {...(story && { followed: story.id })} />
      </section>
      <div class="halves">
        {state.maps.map((map) => {
          const model = state.models.find(({ name }) => name === map.model);
          return model ? (
            <section class="card" aria-label={`Memory of ${map.model}`} key={map.model}>
              <h2>{map.model}</h2>
              <p class="note">{memoryOf(model)}</p>
              <BlockMapView map={map} blocks={model.blocks} />
            </section>
          ) : null;
        })}
        <section class="card" aria-label="Latencies">
          <h2>Latencies</h2>
          <Latencies latency={state.latency} />
        </section>
      </div>
      {story && <StoryView story={story} />}
      <section class="card" aria-label="Requests">
        <h2>Requests</h2>
        <RequestTable requests={state.requests} followed={story?.id} />
      </section>
      <section class="card" aria-label="Ended">
        <h2>Ended</h2>
        <EndedTable ended={ended} />
      </section>
    </div>
  );
}

type Model = StateEvent["models"][number];

function memoryOf({ weight_bytes, kv_bytes, max_model_len, dtype, slots }: Model): string {
  return [
    dtype,
    `weights ${bytes(weight_bytes)}`,
    `KV cache ${bytes(kv_bytes)}`,
    `context ${whole(max_model_len)}`,
    ...(slots
      ? [`states: ${slots.held} held, ${slots.snapshots} snapshots of ${slots.total}`]
      : []),
  ].join(" · ");
}

const total = (models: readonly Model[], of: (model: Model) => number) =>
  models.reduce((sum, model) => sum + of(model), 0);

function Tiles({ view, state }: { view: EngineView; state: StateEvent }) {
  const { models, memory, requests, admitted } = state;
  const { decode, prompt, ms } = rates(view.steps);
  const running = requests.filter(({ state: is }) => is === "running").length;
  const [prompts, cached] = [
    total(models, (model) => model.prompt_tokens),
    total(models, (model) => model.cached_tokens),
  ];
  const active = models[0]?.active_bytes ?? 0;
  const tiles: [string, string, string][] = [
    ["Decoding", `${oneDigit(decode)} tokens/s`, `${oneDigit(ms)} ms a step`],
    ["Prompts", `${oneDigit(prompt)} tokens/s`, `${whole(prompts)} since the start`],
    [
      "Requests",
      `${running} running`,
      `${requests.length - running} waiting, ${admitted} admitted`,
    ],
    [
      "Prefix cache",
      `${percent(cached, prompts)} hits`,
      `${whole(cached)} of ${whole(prompts)} tokens`,
    ],
    [
      "Generated",
      whole(total(models, (model) => model.generated_tokens)),
      `${whole(total(models, (model) => model.preemptions))} preemptions`,
    ],
    [
      "Memory",
      bytes(active),
      `of ${bytes(memory.usable_bytes)}, room for ${bytes(memory.room_bytes)}`,
    ],
  ];
  return (
    <dl class="tiles">
      {tiles.map(([name, value, note]) => (
        <div class="card">
          <dt>{name}</dt>
          <dd>{value}</dd>
          <dd class="note">{note}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Returns tokens per second over the window, and the mean step duration. */
function rates(steps: readonly Step[]): { decode: number; prompt: number; ms: number } {
  const now = performance.now();
  const recent = steps.filter(({ atMs }) => now - atMs < RATE_MS);
  const sum = (of: (step: Step) => number) => recent.reduce((all, step) => all + of(step), 0);
  const seconds = RATE_MS / 1000;
  return {
    decode: sum((step) => step.decodeTokens) / seconds,
    prompt: sum((step) => step.promptTokens) / seconds,
    ms: recent.length === 0 ? 0 : sum((step) => step.ms) / recent.length,
  };
}
