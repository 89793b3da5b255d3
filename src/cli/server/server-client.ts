// The command line's HTTP client: finds the server and sends requests to it. Error responses become one-line errors.
import { z } from "zod";
import { ErrorResponse } from "../../api/error.ts";
import { ChatChunk, type ChatRequest } from "../../api/openai/chat.ts";
import { ModelList } from "../../api/openai/models.ts";
import { PsResponse, UnloadResponse } from "../../api/owner/admin.ts";
import { Health } from "../../api/owner/health.ts";
import { Settings } from "../../config/settings.ts";
import { UsageError } from "../../config/usage-error.ts";
import { isLoopback } from "../../http/frame/bind.ts";
import { codeOf, quoted } from "../../hub/hub-error.ts";
import type { Environment } from "../../hub/settings.ts";
import { eventData } from "../../lines.ts";
import { knownServers, type ServerEntry } from "../../serve/server-file.ts";

/** Flags of every verb that talks to a server. */
export type ServerFlags = { url?: string | undefined; "api-key"?: string | undefined };

export type Server = {
  url: string;
  key: string | undefined;
  /** Whether the user named the server; otherwise it was found among the registered ones. */
  isNamed: boolean;
  /** The server's registration; undefined unless it runs on this machine as this user. */
  entry: ServerEntry | undefined;
};

/** Returns the server that the user named, or else all servers on this machine. */
async function findServers(flags: ServerFlags, env: Environment): Promise<Server[]> {
  const named = flags.url ?? (env.MLX_SERVE_URL || undefined);
  const known = knownServers(env);
  if (named !== undefined) {
    const url = baseOf(named);
    const entry = known.find((each) => isSame(each.url, url));
    // MLX_SERVE_API_KEY may contain several keys, because servers read it too.
    const [ownKey] = env.MLX_SERVE_API_KEY?.split(",") ?? [];
    return [{ url, key: flags["api-key"] ?? entry?.key ?? ownKey, isNamed: true, entry }];
  }
  const there = await Promise.all(known.map(isThere));
  return known
    .filter((_, index) => there[index])
    .map((entry) => ({
      url: entry.url,
      key: flags["api-key"] ?? entry.key,
      isNamed: false,
      entry,
    }));
}

/** Returns the server that the user named, the only one that runs, or the one at the default port, if any. */
export async function findServer(
  flags: ServerFlags,
  env: Environment,
): Promise<Server | undefined> {
  return chooseServer(await findServers(flags, env));
}

/** Returns the server that `findServer` finds; throws if it finds none. */
export async function needServer(flags: ServerFlags, env: Environment): Promise<Server> {
  return (await findServer(flags, env)) ?? noServer();
}

export async function needServers(flags: ServerFlags, env: Environment): Promise<Server[]> {
  const servers = await findServers(flags, env);
  return servers.length > 0 ? servers : noServer();
}

function noServer(): never {
  throw new Error("no server is running: `mlx-serve serve` starts one, --url names one elsewhere");
}

export async function health(server: Server): Promise<Health> {
  const response = await send(server, "/health", { signal: AbortSignal.timeout(HEALTH_MS) });
  // A response with status 503 contains the health too.
  return parsed(server, Health, await response.text());
}

export async function listModels(server: Server): Promise<ModelList["data"]> {
  return (await ask(server, ModelList, "/v1/models")).data;
}

/** Returns whether the server needs no key. */
export async function isOpen({ url, isNamed, entry }: Server): Promise<boolean> {
  return (await send({ url, key: undefined, isNamed, entry }, "/v1/models", {})).ok;
}

export function readPs(server: Server): Promise<PsResponse> {
  return ask(server, PsResponse, "/ps");
}

export function unloadModel(server: Server, model: string): Promise<UnloadResponse> {
  return ask(server, UnloadResponse, "/models/unload", { model });
}

export type ChatQuestion = Omit<z.input<typeof ChatRequest>, "stream">;

/** Yields the chunks of a stream; leaving the loop or aborting the signal cancels the request. */
export async function* streamChat(
  server: Server,
  question: ChatQuestion,
  signal?: AbortSignal,
): AsyncGenerator<ChatChunk> {
  const body = { ...question, stream: true };
  const response = await send(server, "/v1/chat/completions", { body, signal });
  if (!response.ok || !response.body) throw await refusal(server, response);
  try {
    for await (const data of eventData(response.body)) {
      if (data === "[DONE]") return;
      const event = parsed(server, StreamEvent, data);
      if ("error" in event) throw refused(server, event);
      yield event;
    }
  } catch (error) {
    // Only errors of a broken connection have a code; others are thrown unchanged.
    if (codeOf(error) === undefined) throw error;
  }
  throw new Error(`${server.url}: the answer was cut off`);
}

const StreamEvent = z.union([ErrorResponse, ChatChunk]);

/** Removes a trailing slash and /v1 from a URL, since users write both. */
function baseOf(address: string): string {
  const url = URL.parse(address);
  if (url?.protocol === "http:" || url?.protocol === "https:") {
    return `${url.origin}${url.pathname}`.replace(/\/+$/, "").replace(/\/v1$/, "");
  }
  throw new UsageError(
    `expected the address of a server, such as http://127.0.0.1:8080, not ${quoted(address)}`,
  );
}

/** Returns whether two URLs mean the same server; the loopback address has several spellings. */
function isSame(one: string, other: string): boolean {
  const [a, b] = [new URL(one), new URL(other)];
  const isHere = isLoopback(a.hostname) && isLoopback(b.hostname);
  return a.port === b.port && (isHere || a.hostname === b.hostname);
}

const HEALTH_MS = 5_000;

/** Returns whether a server still runs, by a request, since its PID may be reused; a timeout counts as running. */
async function isThere({ url }: ServerEntry): Promise<boolean> {
  try {
    await fetch(`${url}/health`, { signal: AbortSignal.timeout(HEALTH_MS) });
    return true;
  } catch (error) {
    return codeOf(error) !== "ECONNREFUSED";
  }
}

export function chooseServer<T extends { url: string }>(servers: readonly T[]): T | undefined {
  if (servers.length < 2) return servers[0];
  const port = String(Settings.shape.port.parse(undefined));
  const atDefault = servers.filter(({ url }) => new URL(url).port === port);
  if (atDefault.length === 1) return atDefault[0];
  throw severalServers(servers);
}

export function severalServers(servers: readonly { url: string }[]): UsageError {
  const urls = servers.map(({ url }) => url).sort();
  return new UsageError(
    `${urls.length} servers are running: choose one with --url: ${urls.join(", ")}`,
  );
}

async function ask<T>(
  server: Server,
  schema: z.ZodType<T>,
  path: string,
  body?: object,
): Promise<T> {
  const response = await send(server, path, { body });
  if (!response.ok) throw await refusal(server, response);
  return parsed(server, schema, await response.text());
}

/** Options of a request, which is a POST if it has a body. */
type SendOptions = { body?: object | undefined; signal?: AbortSignal | undefined };

async function send(
  { url, key }: Server,
  path: string,
  { body, signal }: SendOptions,
): Promise<Response> {
  try {
    return await fetch(`${url}${path}`, {
      method: body ? "POST" : "GET",
      headers: {
        ...(key !== undefined && { Authorization: `Bearer ${key}` }),
        ...(body && { "Content-Type": "application/json" }),
      },
      ...(body && { body: JSON.stringify(body) }),
      ...(signal && { signal }),
      // The timeout is off: Bun's default is five minutes, and a request may be queued for longer.
      timeout: false,
    });
  } catch (error) {
    throw new Error(`${url} cannot be reached (${codeOf(error) ?? (error as Error).name})`);
  }
}

async function refusal(server: Server, response: Response): Promise<Error> {
  const { data } = ErrorResponse.safeParse(jsonOf(await response.text()));
  return data ? refused(server, data) : new Error(`${server.url} answered ${response.status}`);
}

function refused({ url }: Server, { error }: ErrorResponse): Error {
  return new Error(`${url}: ${error.message.replace(/\s+/g, " ")}`);
}

function parsed<T>({ url }: Server, schema: z.ZodType<T>, text: string): T {
  const { success, data } = schema.safeParse(jsonOf(text));
  if (success) return data;
  throw new Error(`${url} does not respond like mlx-serve`);
}

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
