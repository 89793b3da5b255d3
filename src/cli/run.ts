// mlx-serve run [model] [prompt]: an answer in the terminal, or a chat without a prompt. Answers come from the local or
// named server, or else from an engine in this process. Piped input is the prompt, or is appended to the given one.
import { fstatSync } from "node:fs";
import { parseArgs } from "node:util";
import { takeSettings } from "../config/load.ts";
import { UsageError } from "../config/usage-error.ts";
import { nearestModel } from "../hub/popular-models.ts";
import type { Environment } from "../hub/settings.ts";
import { printableLines } from "../printable.ts";
import {
  type Answerer,
  type Answerers,
  type AnswerSettings,
  engineAnswerers,
  type Message,
  serverAnswerers,
} from "./chat/answerer.ts";
import { converse } from "./chat/chat.ts";
import { findServer, health, type Server } from "./server/server-client.ts";
import { tell } from "./terminal/tell.ts";

const options = {
  seed: { type: "string" },
  system: { type: "string" },
  local: { type: "boolean", default: false },
  url: { type: "string" },
  "api-key": { type: "string" },
} as const;

/** Settings of `serve` that `run` accepts too, by all flags that `serve` has for them. */
export const settingKeys = ["temperature", "topP", "topK", "minP", "maxTokens", "dtype"] as const;

export async function run(args: string[], env: Environment = process.env): Promise<void> {
  const { taken, rest } = takeSettings(args, settingKeys);
  const { values, positionals } = parseArgs({ args: rest, options, allowPositionals: true });
  if (positionals.length > 2) {
    throw new UsageError("run takes a model and one prompt; put it in quotes");
  }
  const { temperature = 0, topP, topK, minP, maxTokens = 1024, dtype } = taken;
  const settings: AnswerSettings = {
    maxTokens,
    sampling: { temperature, topP, topK, minP, seed: seedOf(values.seed) },
    dtype: dtype === "auto" ? undefined : dtype,
  };
  // --dtype needs an engine in this process, since a server has already loaded its weights.
  const isLocal = values.local || settings.dtype !== undefined;
  if (isLocal && values.url !== undefined) {
    throw new UsageError("--url excludes --local and --dtype, which run the model in this process");
  }
  const piped = await pipedInput();
  const server = isLocal ? undefined : await findServer(values, env);
  const answerers =
    (server && (await usableServer(server, positionals, settings, env))) ??
    engineAnswerers(settings, env);
  const { model = "default", ...chosen } = choose(positionals, answerers, env);
  const prompt = [chosen.prompt, piped].filter((part) => part !== undefined).join("\n\n");
  try {
    // A missing prompt is reported only if the model exists; otherwise `open` reports the missing model.
    if (prompt === "" && !process.stdin.isTTY && answerers.has(model)) {
      throw new UsageError("there is no prompt: give one, or pipe one in; a chat needs a terminal");
    }
    const answerer = await answerers.open(model);
    const { system } = values;
    if (prompt === "") await converse({ answerer, answerers, say, system });
    else await say(answerer, [...messagesOf(system), { role: "user", content: prompt }]);
  } finally {
    await answerers.close();
  }
}

function messagesOf(system: string | undefined): Message[] {
  return system === undefined ? [] : [{ role: "system", content: system }];
}

/** Returns the piped input; undefined if there is none or it is blank. */
async function pipedInput(): Promise<string | undefined> {
  if (process.stdin.isTTY || !isPiped()) return undefined;
  const text = (await Bun.stdin.text()).trimEnd();
  return text === "" ? undefined : text;
}

/** Returns whether stdin is a pipe, file or socket, rather than closed or a device such as /dev/null. */
function isPiped(): boolean {
  try {
    const input = fstatSync(0);
    return input.isFIFO() || input.isFile() || input.isSocket();
  } catch {
    return false;
  }
}

/** Returns the server as answerers; undefined if it is draining and the user named neither the server nor a model. */
async function usableServer(
  server: Server,
  positionals: readonly string[],
  settings: AnswerSettings,
  env: Environment,
): Promise<Answerers | undefined> {
  const answerers = await serverAnswerers(server, settings, env);
  const { model = "default" } = choose(positionals, answerers, env);
  if (model !== "default" || server.isNamed || (await health(server)).status !== "draining") {
    return answerers;
  }
  tell(`the server at ${server.url} is stopping: answering without it`);
  return undefined;
}

/** Splits arguments into model and prompt. A single argument is the model if it names one or looks like a name. */
function choose(
  [first, second]: readonly string[],
  { has }: Answerers,
  env: Environment,
): { model?: string | undefined; prompt?: string | undefined } {
  if (first === undefined || second !== undefined) return { model: first, prompt: second };
  return has(first) || isLikeModel(first, env) ? { model: first } : { prompt: first };
}

/** Returns whether a word looks like a path, a repo, a short name, or a misspelled model name. */
function isLikeModel(word: string, env: Environment): boolean {
  if (/\s/.test(word)) return false;
  return (
    /^[\w.~-]*\/|^[\w.-]+:[\w.-]+$|\.gguf$/.test(word) || nearestModel(word, env) !== undefined
  );
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
    // Escapes the text for terminals only, since programs that read the output need it unchanged.
    process.stdout.write(process.stdout.isTTY ? printableLines(piece.text) : piece.text);
  }
  process.stdout.write("\n");
  const restMs = performance.now() - start - firstMs;
  const rate = tokens > 1 ? ((1000 * (tokens - 1)) / restMs).toFixed(1) : "-";
  process.stderr.write("\n");
  tell(`${tokens} tokens, ${rate} tokens/s, TTFT ${firstMs.toFixed(0)} ms`);
  return answer;
}

function seedOf(value: string | undefined): number | undefined {
  if (value === undefined) return undefined;
  const seed = Number(value);
  if (value.trim() !== "" && seed >= 0 && Number.isSafeInteger(seed)) return seed;
  throw new UsageError(`--seed: expected a whole number from 0 on, not ${value}`);
}
