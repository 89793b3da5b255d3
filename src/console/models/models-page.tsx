// The models page: the models on this machine, their load state, and pulls from the hub.
import { useEffect, useState } from "hono/jsx/dom";
import type { ModelStates, PlanResponse } from "../../api/owner/admin.ts";
import { DataTable, type TableColumn } from "../parts/data-table.tsx";
import { Problem, TextField } from "../parts/form.tsx";
import { bytes, count, percent, seconds, whole } from "../parts/numbers.ts";
import { askJson, messageOf } from "../parts/server.ts";
import { useStore } from "../parts/store.ts";
import {
  busy,
  load,
  type ModelRow,
  problem,
  pull,
  pulls,
  refreshModels,
  remove,
  states,
  unload,
} from "./models.ts";
import { msLeft, type Pull } from "./pull-progress.ts";

const REFRESH_MS = 1000;

export function ModelsPage() {
  const told = useStore(states);
  const underWay = useStore(pulls);
  useEffect(() => {
    void refreshModels();
    const timer = setInterval(() => void (document.hidden || refreshModels()), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  return (
    <div class="page">
      <Problem text={useStore(problem)} />
      {told && (
        <p class="note">
          {bytes(told.memory.room_bytes)} are free for another model, of{" "}
          {bytes(told.memory.usable_bytes)} that models may take.
        </p>
      )}
      <section class="card" aria-label="Pull">
        <h2>Pull from the hub</h2>
        <PullForm />
        {underWay.map((each) => (
          <PullRow pull={each} key={each.name} />
        ))}
      </section>
      {told?.models.map((model) => (
        <ModelCard model={model} key={model.name} />
      ))}
      {told && told.popular.length > 0 && <Popular models={told.popular} />}
    </div>
  );
}

function PullForm() {
  const [name, setName] = useState("");
  const begin = () => {
    if (name.trim() === "") return;
    void pull(name.trim());
    setName("");
  };
  return (
    <div class="line">
      <TextField
        label="Repo or short name"
        placeholder="qwen3:4b, or org/name"
        value={name}
        onChange={setName}
      />
      <button type="button" class="main" onClick={begin}>
        Pull
      </button>
    </div>
  );
}

function PullRow({ pull: now }: { pull: Pull }) {
  const left = msLeft(now);
  return (
    <div class="line">
      <div class="grow">
        <p>
          <strong>{now.name}</strong>{" "}
          <span class="note">
            {now.status}
            {now.total > 0 && ` · ${bytes(now.completed)} of ${bytes(now.total)}`}
            {left !== undefined && ` · ${seconds(left)} left`}
          </span>
        </p>
        <progress aria-label={`Pull of ${now.name}`} value={now.completed} max={now.total || 1} />
      </div>
      <button type="button" aria-label={`Stop ${now.name}`} onClick={() => now.controller.abort()}>
        Stop
      </button>
    </div>
  );
}

type PopularModel = ModelStates["popular"][number];

const popularColumns: readonly TableColumn<PopularModel>[] = [
  { title: "Name", cell: ({ name }) => name },
  { title: "Repo", cell: ({ repo }) => repo },
  {
    ...{ title: "Size", isNumber: true },
    cell: ({ bytes: size }) => (size === undefined ? "–" : bytes(size)),
  },
  {
    ...{ title: "Context", isNumber: true },
    cell: ({ context_length: length }) => (length === undefined ? "–" : whole(length)),
  },
  { title: "Fits", cell: ({ fits }) => (fits === undefined ? "–" : fits ? "yes" : "no") },
  {
    ...{ title: "Actions", isTitleHidden: true, isNumber: true },
    cell: ({ name, repo }) => (
      <button
        type="button"
        class="quiet"
        aria-label={`Pull ${name}`}
        onClick={() => void pull(repo)}
      >
        Pull
      </button>
    ),
  },
];

function Popular({ models }: { models: readonly PopularModel[] }) {
  return (
    <section class="card" aria-label="Popular models">
      <h2>Popular models on the hub</h2>
      <DataTable
        label="Table of popular models"
        rows={models}
        columns={popularColumns}
        keyOf={({ name }) => name}
      />
    </section>
  );
}

function ModelCard({ model }: { model: ModelRow }) {
  const { name, state, uses, is_main, loaded_bytes, total_bytes } = model;
  const [plan, setPlan] = useState<PlanResponse | string | undefined>(undefined);
  const isBusy = useStore(busy).includes(name);
  const ask = () =>
    askJson<PlanResponse>("/models/plan", { body: { model: name } }).then(setPlan, (error) =>
      setPlan(messageOf(error)),
    );
  return (
    <section class="card" aria-label={name}>
      <header>
        <h2>
          {name} <span class={`tag ${state === "loaded" ? "running" : state}`}>{state}</span>
        </h2>
        <div class="actions">
          {state === "loaded" || state === "loading" ? (
            <button type="button" disabled={isBusy || uses > 0} onClick={() => void unload(name)}>
              Unload
            </button>
          ) : (
            <button type="button" class="main" disabled={isBusy} onClick={() => void load(name)}>
              Load
            </button>
          )}
          {state !== "loaded" && (
            <button type="button" onClick={() => void ask()}>
              Does it fit?
            </button>
          )}
          {!is_main && <DeleteButton name={name} isBusy={isBusy} />}
        </div>
      </header>
      <p class="note">{aboutOf(model).join(" · ")}</p>
      {state === "loading" && (
        <progress
          aria-label={`Load of ${name}, ${percent(loaded_bytes ?? 0, total_bytes ?? 0)}`}
          value={loaded_bytes ?? 0}
          max={total_bytes ?? 1}
        />
      )}
      {plan !== undefined && <p class="plan">{planText(plan)}</p>}
    </section>
  );
}

/** A button that deletes a model after asking for confirmation. */
function DeleteButton({ name, isBusy }: { name: string; isBusy: boolean }) {
  const [isSure, setSure] = useState(false);
  return isSure ? (
    <>
      <button type="button" class="stop" disabled={isBusy} onClick={() => void remove(name)}>
        Delete its files
      </button>
      <button type="button" onClick={() => setSure(false)}>
        Keep
      </button>
    </>
  ) : (
    <button type="button" aria-label={`Delete ${name}`} onClick={() => setSure(true)}>
      Delete
    </button>
  );
}

function aboutOf(model: ModelRow): string[] {
  const { architecture, parameters, quantization, dtype, context_length, max_model_len } = model;
  return [
    model.format,
    ...(architecture === undefined ? [] : [architecture]),
    ...(parameters === undefined ? [] : [`${count(parameters)} parameters`]),
    ...(quantization === undefined ? [] : [quantization]),
    ...(dtype === undefined ? [] : [dtype]),
    `${bytes(model.file_bytes)} on disk`,
    ...(context_length === undefined ? [] : [`context ${whole(context_length)} tokens`]),
    ...(max_model_len === undefined ? [] : [`serves ${whole(max_model_len)}`]),
    ...(model.fits ? [] : ["larger than the free memory"]),
    ...(model.uses > 0 ? [`${model.uses} requests`] : []),
    ...(model.is_main ? ["the server was started with it"] : []),
  ];
}

function planText(plan: PlanResponse | string): string {
  if (typeof plan === "string") return plan;
  const { fits, weight_bytes = 0, kv_bytes = 0, step_bytes = 0, max_model_len = 0 } = plan;
  if (!fits) return `It does not fit: ${plan.problem ?? "not enough memory"}`;
  return `It fits: ${plan.dtype}, weights ${bytes(weight_bytes)}, KV cache ${bytes(kv_bytes)} for ${whole(max_model_len)} tokens, a step ${bytes(step_bytes)}.`;
}
