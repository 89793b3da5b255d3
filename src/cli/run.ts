// mlx-serve run [model] [prompt]: an answer in the terminal, or a chat where no prompt is given.
import { createInterface } from "node:readline/promises";
import { parseArgs } from "node:util";
import { backend, findLibrary } from "../../ffi/native.ts";
import { EngineClient } from "../engine/client.ts";
import type { Sampling } from "../engine/protocol.ts";
import { ModelNotFoundError } from "../hub/hub-error.ts";
import { type ModelSource, resolveModel } from "../hub/source.ts";
import { makeLogger } from "../log.ts";
import { Detokenizer } from "../text/detokenizer.ts";
import type { ChatMessage } from "../text/template.ts";
import { openTextModel, type TextModel } from "../text/text-model.ts";
import { showProgress } from "./progress.ts";

const options = {
  "max-tokens": { type: "string", default: "1024" },
  temperature: { type: "string", default: "0" },
  "top-p": { type: "string", default: "1" },
  seed: { type: "string" },
  system: { type: "string" },
  dtype: { type: "string" },
} as const;

type Settings = { maxTokens: number; sampling: Sampling; system: string | undefined };

type Answer = { text: string; tokens: number; seconds: number };

export async function run(args: string[]): Promise<void> {
  const { values, positionals } = parseArgs({ args, options, allowPositionals: true });
  const { source, prompt } = choose(positionals);
  const settings: Settings = {
    maxTokens: numberOf("max-tokens", values["max-tokens"], 1),
    sampling: {
      temperature: numberOf("temperature", values.temperature, 0),
      topP: numberOf("top-p", values["top-p"], 0),
      seed: values.seed === undefined ? undefined : numberOf("seed", values.seed, 0),
    },
    system: values.system,
  };
  const log = makeLogger({
    level: process.env.MLX_SERVE_LOG === "debug" ? "debug" : "warn",
    format: "json",
  });
  const text = openTextModel(source.path);
  const engine = await EngineClient.start(
    { library: findLibrary(), device: backend() === "cpu" ? "cpu" : "gpu", trace: false },
    { onProgress: showProgress, onStep: (report) => log.debug(report, "step") },
  );
  try {
    // One row is all it takes.
    await engine.load(source.name, source.path, {
      maxBatch: 1,
      dtype: dtypeOf(values.dtype),
      debug: log.level === "debug",
    });
    const model = new ChatModel(engine, source.name, text, settings);
    if (prompt === undefined) await converse(model, source.name);
    else await model.say([{ role: "user", content: prompt }]);
  } finally {
    await engine.stop();
  }
}

/** One argument is a model if there is one of that name, and a prompt for the default one if not. */
function choose(positionals: readonly string[]): { source: ModelSource; prompt?: string } {
  const [first, second, ...more] = positionals;
  if (more.length > 0) throw new Error("run takes a model and one prompt; put it in quotes");
  if (first === undefined) return { source: resolveModel("default") };
  if (second !== undefined) return { source: resolveModel(first), prompt: second };
  try {
    return { source: resolveModel(first) };
  } catch (error) {
    if (!(error instanceof ModelNotFoundError) || !/\s/.test(first)) throw error;
    return { source: resolveModel("default"), prompt: first };
  }
}

class ChatModel {
  readonly #engine: EngineClient;
  readonly #name: string;
  readonly #text: TextModel;
  readonly #settings: Settings;
  #stop: (() => void) | undefined;

  constructor(engine: EngineClient, name: string, text: TextModel, settings: Settings) {
    this.#engine = engine;
    this.#name = name;
    this.#text = text;
    this.#settings = settings;
  }

  /** Streams an answer to these messages to the terminal. */
  async say(messages: readonly ChatMessage[]): Promise<Answer> {
    const { tokenizer, stopTokens } = this.#text;
    const detokenizer = new Detokenizer(tokenizer.decoder, { skipControl: true });
    const start = performance.now();
    const events = this.#engine.submit(this.#name, {
      prompt: Uint32Array.from(this.#prompt(messages)),
      maxTokens: this.#settings.maxTokens,
      stopTokens: [...stopTokens],
      sampling: this.#settings.sampling,
    });
    this.#stop = () => void events.return();
    let [text, tokens, firstMs] = ["", 0, 0];
    const show = (piece: string) => {
      text += piece;
      process.stdout.write(piece);
    };
    for await (const { token, finished } of events) {
      if (token === undefined) continue;
      tokens += 1;
      if (tokens === 1) firstMs = performance.now() - start;
      if (finished !== "stop") show(detokenizer.push([token]));
    }
    show(detokenizer.flush());
    process.stdout.write("\n");
    const seconds = (performance.now() - start) / 1000;
    const rate = tokens > 1 ? ((tokens - 1) / (seconds - firstMs / 1000)).toFixed(1) : "-";
    console.error(`\n${tokens} tokens, ${rate} tokens/s, first after ${firstMs.toFixed(0)} ms`);
    return { text, tokens, seconds };
  }

  /** Ends the answer under way. */
  interrupt(): boolean {
    const stop = this.#stop;
    this.#stop = undefined;
    stop?.();
    return stop !== undefined;
  }

  #prompt(messages: readonly ChatMessage[]): number[] {
    const { tokenizer, chat } = this.#text;
    const { system } = this.#settings;
    const all =
      system === undefined ? messages : [{ role: "system", content: system }, ...messages];
    if (chat) return chat({ messages: all, addGenerationPrompt: true }).ids;
    // A model without a template goes on with what was said.
    const text = all.map(({ content }) => String(content)).join("\n");
    return tokenizer.encode(text, { addSpecialTokens: true, controlTokens: "text" });
  }
}

async function converse(model: ChatModel, name: string): Promise<void> {
  const terminal = createInterface({ input: process.stdin, output: process.stdout });
  console.log(`${name}: /clear begins anew, /exit or Ctrl-D ends`);
  terminal.on("SIGINT", () => {
    if (!model.interrupt()) terminal.close();
  });
  const messages: ChatMessage[] = [];
  // Input from a file is at its end while its lines are still being answered.
  let open = true;
  terminal.on("close", () => {
    open = false;
  });
  const prompt = () => void (open && terminal.prompt());
  terminal.setPrompt("> ");
  prompt();
  for await (const line of terminal) {
    if (line === "/exit") break;
    if (line === "/clear") messages.length = 0;
    else if (line.trim() !== "") {
      messages.push({ role: "user", content: line });
      const { text } = await model.say(messages);
      messages.push({ role: "assistant", content: text });
    }
    prompt();
  }
  terminal.close();
}

function numberOf(name: string, value: string, least: number): number {
  const number = Number(value);
  if (value.trim() !== "" && number >= least && Number.isFinite(number)) return number;
  throw new Error(`--${name} must be a number from ${least} on, not ${value}`);
}

function dtypeOf(value: string | undefined): "float32" | "float16" | "bfloat16" | undefined {
  if (value === undefined || value === "float32" || value === "float16" || value === "bfloat16") {
    return value;
  }
  throw new Error(`--dtype must be float32, float16 or bfloat16, not ${value}`);
}
