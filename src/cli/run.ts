// mlx-serve run [model] [prompt]: an answer in the terminal, or a chat where no prompt is given. It comes
// from the local or named server, and otherwise from an engine in this process.
import { createInterface } from "node:readline/promises";
import { parseArgs } from "node:util";
import { engineSetup } from "../../ffi/native.ts";
import { UsageError } from "../config/usage-error.ts";
import { EngineClient } from "../engine/client.ts";
import type { Sampling } from "../engine/protocol.ts";
import { ModelNotFoundError } from "../hub/hub-error.ts";
import type { Environment } from "../hub/settings.ts";
import { type ModelSource, resolveModel } from "../hub/source.ts";
import { makeLogger } from "../log.ts";
import { printable, printableLines } from "../printable.ts";
import { Answers } from "../serve/answers.ts";
import { openTextModel, type TextModel } from "../text/text-model.ts";
import { modelHere } from "./model-here.ts";
import { showProgress } from "./progress.ts";
import { findServer, health, listModels, type Server, streamChat } from "./server-client.ts";

const options = {
  "max-tokens": { type: "string", default: "1024" },
  temperature: { type: "string", default: "0" },
  "top-p": { type: "string", default: "1" },
  seed: { type: "string" },
  system: { type: "string" },
  dtype: { type: "string" },
  local: { type: "boolean", default: false },
  url: { type: "string" },
  "api-key": { type: "string" },
} as const;

type Message = { role: "system" | "user" | "assistant"; content: string };

/** An answer so far. */
type Piece = { text: string; tokens: number };

/** Answers messages: a server, or an engine in this process. */
type Answerer = {
  name: string;
  /** The signal ends the answer early, without an error. */
  answer(messages: readonly Message[], signal?: AbortSignal): AsyncIterable<Piece>;
  close(): Promise<void>;
};

type Settings = { maxTokens: number; sampling: Sampling; dtype: Dtype | undefined };

export async function run(args: string[], env: Environment = process.env): Promise<void> {
  const { values, positionals } = parseArgs({ args, options, allowPositionals: true });
  if (positionals.length > 2) {
    throw new UsageError("run takes a model and one prompt; put it in quotes");
  }
  const settings: Settings = {
    maxTokens: wholeOf("max-tokens", values["max-tokens"], 1),
    sampling: {
      temperature: numberOf("temperature", values.temperature, 0),
      topP: numberOf("top-p", values["top-p"], 0),
      seed: values.seed === undefined ? undefined : wholeOf("seed", values.seed, 0),
    },
    dtype: dtypeOf(values.dtype),
  };
  // A server's weights are loaded already.
  const isLocal = values.local || settings.dtype !== undefined;
  if (isLocal && values.url !== undefined) {
    throw new UsageError("--url asks a server, and --local and --dtype do without");
  }
  const server = isLocal ? undefined : await findServer(values, env);
  const { answerer, prompt } =
    (server && (await askServer(server, positionals, settings))) ??
    (await startEngine(positionals, settings, env));
  const system: Message[] =
    values.system === undefined ? [] : [{ role: "system", content: values.system }];
  try {
    if (prompt === undefined) await converse(answerer, system);
    else await say(answerer, [...system, { role: "user", content: prompt }]);
  } finally {
    await answerer.close();
  }
}

type Opened = { answerer: Answerer; prompt: string | undefined };

/** A single argument is a model if one has that name, and otherwise a prompt for the default model. */
function choose(
  [first, second]: readonly string[],
  isModel: (name: string) => boolean,
): { model: string | undefined; prompt: string | undefined } {
  if (first === undefined || second !== undefined) return { model: first, prompt: second };
  const isName = !/\s/.test(first) || isModel(first);
  return isName ? { model: first, prompt: undefined } : { model: undefined, prompt: first };
}

/** Undefined if the server is shutting down and the user named neither it nor one of its models. */
async function askServer(
  server: Server,
  positionals: readonly string[],
  settings: Settings,
): Promise<Opened | undefined> {
  const { url } = server;
  const models = await listModels(server);
  const named = (name: string) => models.find(({ id }) => id === name);
  const { model = "default", prompt } = choose(positionals, (name) => named(name) !== undefined);
  if (model === "default" && !server.isNamed && (await health(server)).status === "draining") {
    tell(`the server at ${url} is stopping: this is answered without it`);
    return undefined;
  }
  const found = model === "default" ? models[0] : named(model);
  if (!found) {
    throw new Error(`the server at ${url} has no model ${model}; --local does without it`);
  }
  const toLoad = found.max_model_len === undefined ? ", which has to load it" : "";
  tell(`${found.id}, from the server at ${url}${toLoad}; --local does without it`);
  return { answerer: serverAnswerer(server, found.id, settings), prompt };
}

function serverAnswerer(
  server: Server,
  model: string,
  { maxTokens, sampling: { temperature, topP, seed } }: Settings,
): Answerer {
  const question = {
    model,
    max_tokens: maxTokens,
    temperature,
    top_p: topP,
    seed,
    // A server has its own defaults for these; the engine has none.
    ...{ top_k: 0, min_p: 0, repetition_penalty: 1 },
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
    close: async () => {},
  };
}

async function startEngine(
  positionals: readonly string[],
  settings: Settings,
  env: Environment,
): Promise<Opened> {
  const { model = "default", prompt } = choose(positionals, (name) => isModel(name, env));
  const source = await modelHere(model, env);
  const log = makeLogger({
    level: env.MLX_SERVE_LOG === "debug" ? "debug" : "warn",
    format: "json",
  });
  const text = openTextModel(source.path);
  const engine = await EngineClient.start(engineSetup(env), {
    onProgress: showProgress,
    onStep: (report) => log.debug(report, "step"),
  });
  try {
    // There is only one sequence.
    await engine.load(source.name, source.path, {
      maxBatch: 1,
      dtype: settings.dtype,
      debug: log.level === "debug",
    });
  } catch (error) {
    await engine.stop();
    throw error;
  }
  return { answerer: engineAnswerer(engine, source, text, settings), prompt };
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
  { name }: ModelSource,
  { tokenizer, chat, stopTokens }: TextModel,
  { maxTokens, sampling }: Settings,
): Answerer {
  const idsOf = (messages: readonly Message[]) => {
    if (chat) return chat({ messages, addGenerationPrompt: true }).ids;
    // A model without a chat template continues the plain text.
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
    close: () => engine.stop(),
  };
}

/** Streams an answer to the terminal, then prints its throughput. */
async function say(
  answerer: Answerer,
  messages: readonly Message[],
  signal?: AbortSignal,
): Promise<string> {
  const start = performance.now();
  let [answer, tokens, firstMs] = ["", 0, 0];
  for await (const piece of answerer.answer(messages, signal)) {
    if (tokens === 0 && piece.tokens > 0) firstMs = performance.now() - start;
    tokens += piece.tokens;
    answer += piece.text;
    // A program that reads the answer gets it as it is.
    process.stdout.write(process.stdout.isTTY ? printableLines(piece.text) : piece.text);
  }
  process.stdout.write("\n");
  const restMs = performance.now() - start - firstMs;
  const rate = tokens > 1 ? ((1000 * (tokens - 1)) / restMs).toFixed(1) : "-";
  process.stderr.write("\n");
  tell(`${tokens} tokens, ${rate} tokens/s, TTFT ${firstMs.toFixed(0)} ms`);
  return answer;
}

/** console.error prints red on a terminal. */
function tell(line: string): void {
  process.stderr.write(`${printable(line)}\n`);
}

async function converse(answerer: Answerer, system: readonly Message[]): Promise<void> {
  const terminal = createInterface({ input: process.stdin, output: process.stdout });
  console.log(`${printable(answerer.name)}: /clear starts over, /exit or Ctrl-D quits`);
  let answering: AbortController | undefined;
  terminal.on("SIGINT", () => {
    if (answering) answering.abort();
    else terminal.close();
  });
  let messages = [...system];
  // Piped input ends while its lines are still being answered.
  let open = true;
  terminal.on("close", () => {
    open = false;
  });
  const prompt = () => void (open && terminal.prompt());
  terminal.setPrompt("> ");
  prompt();
  try {
    for await (const line of terminal) {
      if (line === "/exit") break;
      if (line === "/clear") messages = [...system];
      else if (line.trim() !== "") {
        messages.push({ role: "user", content: line });
        answering = new AbortController();
        const answer = await say(answerer, messages, answering.signal);
        answering = undefined;
        messages.push({ role: "assistant", content: answer });
      }
      prompt();
    }
  } finally {
    terminal.close();
  }
}

function wholeOf(name: string, value: string, least: number): number {
  const number = numberOf(name, value, least);
  if (Number.isSafeInteger(number)) return number;
  throw new UsageError(`--${name} must be a whole number, not ${value}`);
}

function numberOf(name: string, value: string, least: number): number {
  const number = Number(value);
  if (value.trim() !== "" && number >= least && Number.isFinite(number)) return number;
  throw new UsageError(`--${name} must be a number from ${least} on, not ${value}`);
}

type Dtype = "float32" | "float16" | "bfloat16";

function dtypeOf(value: string | undefined): Dtype | undefined {
  if (value === undefined || value === "float32" || value === "float16" || value === "bfloat16") {
    return value;
  }
  throw new UsageError(`--dtype must be float32, float16 or bfloat16, not ${value}`);
}
