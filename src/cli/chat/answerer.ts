// Answers messages for `mlx-serve run`: by a server, or by an engine in this process.
import { engineSetup } from "../../../ffi/native.ts";
import type { Settings } from "../../config/settings.ts";
import { EngineClient } from "../../engine/client.ts";
import type { Sampling } from "../../engine/protocol.ts";
import { ModelNotFoundError } from "../../hub/hub-error.ts";
import { fullName } from "../../hub/popular-models.ts";
import type { Environment } from "../../hub/settings.ts";
import { resolveModel } from "../../hub/source.ts";
import { makeLogger } from "../../log.ts";
import { Answers } from "../../serve/answers.ts";
import { openLoadable } from "../../serve/load-check.ts";
import type { TextModel } from "../../text/text-model.ts";
import { modelHere } from "../models/model-here.ts";
import { listModels, type Server, streamChat } from "../server/server-client.ts";
import { showActivity } from "../terminal/progress.ts";
import { tell } from "../terminal/tell.ts";

export type Message = { role: "system" | "user" | "assistant"; content: string };

/** A chunk of an answer. */
export type Piece = { text: string; tokens: number };

/** A model that answers. */
export type Answerer = {
  readonly name: string;
  /** Streams an answer; aborting the signal ends it early, without an error. */
  answer(messages: readonly Message[], signal?: AbortSignal): AsyncIterable<Piece>;
};

/** Opens models; at most one is open at a time. */
export type Answerers = {
  has(model: string): boolean;
  /** Opens a model; throws if it does not exist. */
  open(model: string): Promise<Answerer>;
  close(): Promise<void>;
};

export type AnswerSettings = {
  maxTokens: number;
  sampling: Sampling;
  dtype: Exclude<Settings["dtype"], "auto"> | undefined;
};

export async function serverAnswerers(
  server: Server,
  settings: AnswerSettings,
  env: Environment,
): Promise<Answerers> {
  const { url } = server;
  const models = await listModels(server);
  const find = (name: string) => {
    if (name === "default") return models[0];
    return models.find(({ id }) => id === name || id === fullName(name, env));
  };
  return {
    has: (name) => find(name) !== undefined,
    async open(name) {
      const found = find(name);
      if (!found) {
        throw new Error(`the server at ${url} has no model ${name}; --local runs it here`);
      }
      const toLoad = found.max_model_len === undefined ? ", which must load it first" : "";
      tell(`${found.id}, from the server at ${url}${toLoad}; --local runs it here`);
      return serverAnswerer(server, found.id, settings);
    },
    close: async () => {},
  };
}

function serverAnswerer(
  server: Server,
  model: string,
  { maxTokens, sampling }: AnswerSettings,
): Answerer {
  const question = {
    model,
    max_tokens: maxTokens,
    temperature: sampling.temperature,
    // These fields are always sent, because a server has defaults of its own.
    top_p: sampling.topP ?? 1,
    top_k: sampling.topK ?? 0,
    min_p: sampling.minP ?? 0,
    repetition_penalty: 1,
    seed: sampling.seed,
    return_token_ids: true,
  };
  return {
    name: model,
    async *answer(messages, signal) {
      const all = { ...question, messages: [...messages] };
      try {
        for await (const { choices } of streamChat(server, all, signal)) {
          for (const { delta, token_ids: ids = [] } of choices) {
            yield { text: delta.content ?? "", tokens: ids.length };
          }
        }
      } catch (error) {
        if (!signal?.aborted) throw error;
      }
    },
  };
}

/** Answers with an engine in this process; the engine starts when the first model is opened. */
export function engineAnswerers(settings: AnswerSettings, env: Environment): Answerers {
  const log = makeLogger({
    level: env.MLX_SERVE_LOG === "debug" ? "debug" : "warn",
    format: "json",
  });
  let engine: EngineClient | undefined;
  let loaded: string | undefined;
  return {
    has: (name) => isModel(name, env),
    async open(name) {
      const source = await modelHere(name, env);
      engine ??= await EngineClient.start(engineSetup(env), {
        onActivity: showActivity(),
        onStep: (report) => log.debug(report, "step"),
      });
      const text = await openLoadable(source.path, engine);
      if (loaded !== undefined) await engine.unload(loaded);
      loaded = source.name;
      // A chat is a single sequence, so the batch holds one.
      await engine.load(source.name, source.path, {
        maxBatch: 1,
        dtype: settings.dtype,
        debug: log.level === "debug",
      });
      return engineAnswerer(engine, source.name, text, settings);
    },
    close: async () => await engine?.stop(),
  };
}

function isModel(name: string, env: Environment): boolean {
  try {
    resolveModel(name, { env });
    return true;
  } catch (error) {
    if (error instanceof ModelNotFoundError) return false;
    throw error;
  }
}

function engineAnswerer(
  engine: EngineClient,
  name: string,
  { tokenizer, chat, stopTokens }: TextModel,
  { maxTokens, sampling }: AnswerSettings,
): Answerer {
  const idsOf = (messages: readonly Message[]) => {
    if (chat) return chat({ messages, addGenerationPrompt: true }).ids;
    // Without a chat template, the model continues the texts of the messages.
    const text = messages.map(({ content }) => content).join("\n");
    return tokenizer.encode(text, { addSpecialTokens: true, controlTokens: "text" });
  };
  return {
    name,
    async *answer(messages, signal) {
      const prompt = Uint32Array.from(idsOf(messages));
      const request = { prompt, maxTokens, stopTokens: [...stopTokens], sampling };
      const asked = { model: name, tokenizer, requests: [request], stops: [] };
      const answers = new Answers(engine, asked);
      signal?.addEventListener("abort", () => answers.abort(), { once: true });
      try {
        for (let pieces = await answers.read(); pieces.length > 0; pieces = await answers.read()) {
          for (const { text, tokens } of pieces) yield { text, tokens: tokens.length };
        }
      } catch (error) {
        if (!signal?.aborted) throw error;
      }
    },
  };
}
