// Who the page is to the server, and the models there are.
import type { ConsoleSession } from "../api/console.ts";
import type { ModelList } from "../api/models.ts";
import { askJson, messageOf } from "./server.ts";
import { Store } from "./store.ts";

export type Session = {
  state: "asking" | "open" | "needs key" | "wrong key" | "unreachable";
  /** Whether the server has keys at all. */
  keyed: boolean;
  name: string;
  owner: boolean;
  version: string;
  models: readonly string[];
  problem: string;
};

export const session = new Store<Session>({
  state: "asking",
  keyed: false,
  name: "",
  owner: false,
  version: "",
  models: [],
  problem: "",
});

/** Asks again, as after a key was entered or a model came. */
export async function refreshSession(): Promise<void> {
  try {
    const { needs_key, sent_key, caller } = await askJson<ConsoleSession>("/console.json");
    if (!caller) {
      const state = sent_key ? "wrong key" : "needs key";
      session.set({ ...session.value, state, keyed: needs_key, owner: false, models: [] });
      return;
    }
    const { data } = await askJson<ModelList>("/v1/models");
    const { name, owner, version } = caller;
    const models = data.map(({ id }) => id);
    session.set({ state: "open", keyed: needs_key, name, owner, version, models, problem: "" });
  } catch (error) {
    session.set({ ...session.value, state: "unreachable", problem: messageOf(error) });
  }
}
