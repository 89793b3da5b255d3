// The machine's models as last reported by the server, and the pulls started by this page.
import type { OllamaPullStatus } from "../../api/ollama/models.ts";
import type { ModelStates } from "../../api/owner/admin.ts";
import { ask, askJson, messageOf, partsOf } from "../parts/server.ts";
import { refreshSession } from "../parts/session.ts";
import { Store } from "../parts/store.ts";
import { after, type Pull } from "./pull-progress.ts";

export type ModelRow = ModelStates["models"][number];

export const states = new Store<ModelStates | undefined>(undefined);
export const pulls = new Store<readonly Pull[]>([]);
export const problem = new Store("");
/** Names of models on which an action of this page (such as loading) is unfinished. */
export const busy = new Store<readonly string[]>([]);

export async function refreshModels(): Promise<void> {
  try {
    states.set(await askJson<ModelStates>("/models"));
  } catch (error) {
    problem.set(messageOf(error));
  }
}

/** Performs an action on a model, then refreshes the models. */
async function act(name: string, asked: () => Promise<unknown>): Promise<void> {
  problem.set("");
  busy.set([...busy.value, name]);
  try {
    const answer = asked();
    await Promise.race([answer, refreshModels()]);
    await answer;
  } catch (error) {
    problem.set(`${name}: ${messageOf(error)}`);
  }
  busy.set(busy.value.filter((each) => each !== name));
  await Promise.all([refreshModels(), refreshSession()]);
}

export const load = (model: string) => act(model, () => ask("/models/load", { body: { model } }));

export const unload = (model: string) =>
  act(model, () => ask("/models/unload", { body: { model } }));

export const remove = (model: string) =>
  act(model, () => ask("/api/delete", { method: "DELETE", body: { model } }));

export async function pull(name: string): Promise<void> {
  problem.set("");
  const controller = new AbortController();
  let now: Pull = {
    ...{ name, status: "asking the hub", completed: 0, total: 0 },
    ...{ startMs: performance.now(), startBytes: undefined, controller },
  };
  const show = (next: Pull | undefined) => {
    const others = pulls.value.filter((each) => each.name !== name);
    pulls.set(next ? [...others, next] : others);
  };
  show(now);
  try {
    const { signal } = controller;
    const response = await ask("/api/pull", { body: { model: name }, signal });
    for await (const line of partsOf(response, "\n")) {
      if (line.trim() === "") continue;
      const told = JSON.parse(line) as OllamaPullStatus | { error: string };
      if ("error" in told) throw new Error(told.error);
      now = after(now, told);
      show(now);
    }
  } catch (error) {
    if (!controller.signal.aborted) problem.set(`${name}: ${messageOf(error)}`);
  }
  show(undefined);
  await Promise.all([refreshModels(), refreshSession()]);
}
