// The page's session: connection to the server, name and rights of the API key, and available models.
import type { ModelList } from "../../api/openai/models.ts";
import type { ConsoleSession } from "../../api/owner/console.ts";
import type { Health } from "../../api/owner/health.ts";
import { askJson, messageOf } from "./server.ts";
import { Store } from "./store.ts";

export type Session = {
  state: "asking" | "open" | "needs key" | "wrong key" | "unreachable";
  /** Whether the server has any API keys. */
  keyed: boolean;
  name: string;
  owner: boolean;
  version: string;
  models: readonly string[];
  /** The server's health and current activity. */
  health: Health;
  problem: string;
};

export const session = new Store<Session>({
  state: "asking",
  keyed: false,
  name: "",
  owner: false,
  version: "",
  models: [],
  health: { status: "ok" },
  problem: "",
});

/** Refreshes the server's health. */
export async function refreshHealth(): Promise<void> {
  if (session.value.state !== "open" || document.hidden) return;
  const { health } = await askJson<ConsoleSession>("/console.json");
  if (JSON.stringify(health) !== JSON.stringify(session.value.health)) {
    session.set({ ...session.value, health });
  }
}

/** Refreshes the session, for example after a key was entered or a model was pulled. */
export async function refreshSession(): Promise<void> {
  try {
    const { needs_key, sent_key, caller, health } = await askJson<ConsoleSession>("/console.json");
    if (!caller) {
      const state = sent_key ? "wrong key" : "needs key";
      session.set({ ...session.value, state, keyed: needs_key, owner: false, models: [], health });
      return;
    }
    const { data } = await askJson<ModelList>("/v1/models");
    const { name, owner, version } = caller;
    const models = data.map(({ id }) => id);
    const open = { state: "open", keyed: needs_key, name, owner, version, models, health } as const;
    session.set({ ...open, problem: "" });
  } catch (error) {
    session.set({ ...session.value, state: "unreachable", problem: messageOf(error) });
  }
}
