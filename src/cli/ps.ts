// mlx-serve ps: shows a server's models, memory and requests.
import { parseArgs } from "node:util";
import type { PsResponse } from "../api/owner/admin.ts";
import type { Health } from "../api/owner/health.ts";
import { formatBytes } from "../hub/bytes.ts";
import type { Environment } from "../hub/settings.ts";
import { printable } from "../printable.ts";
import { health, needServers, readPs, type Server } from "./server/server-client.ts";
import { print } from "./terminal/print.ts";
import { activityText } from "./terminal/progress.ts";
import { table } from "./terminal/table.ts";

const options = {
  json: { type: "boolean" },
  url: { type: "string" },
  "api-key": { type: "string" },
} as const;

export async function ps(args: string[], env: Environment = process.env): Promise<void> {
  const { values } = parseArgs({ args, options });
  const servers = await needServers(values, env);
  const states = await Promise.all(servers.map(stateOf));
  print(values.json ? JSON.stringify(states, null, 2) : states.map(asText).join("\n\n"));
}

type ServerState = { url: string; pid?: number } & Health & PsResponse;

async function stateOf(server: Server): Promise<ServerState> {
  const { url, entry } = server;
  const [state, work] = await Promise.all([health(server), readPs(server)]);
  return { url, ...(entry && { pid: entry.pid }), ...state, ...work };
}

function asText(state: ServerState): string {
  const { url, pid, status, reason, activity, models, ranks, requests } = state;
  const owner = pid === undefined ? "" : ` (process ${pid})`;
  const doing = activity && doingOf(activity);
  return [
    `${url}${owner}: ${[status, reason, doing]
      .filter((part) => part !== undefined)
      .map(printable)
      .join(", ")}`,
    models.length > 0 ? modelTable(models) : "no model is loaded",
    ...(ranks ? [rankTable(ranks), ...models.flatMap(collectivesOf)] : []),
    requests.length > 0 ? requestTable(requests) : "no requests",
  ].join("\n\n");
}

function doingOf({
  kind,
  model = "",
  done = 0,
  total = 0,
  requests,
}: NonNullable<Health["activity"]>): string {
  if (kind === "drain") return `${requests} requests in progress`;
  return activityText(
    kind === "compile" ? { kind, kernel: "", done } : { kind, model, done, total },
  );
}

function modelTable(models: PsResponse["models"]): string {
  return table(
    [
      ...["MODEL", "WEIGHTS", "KV", "KV USED", "SHARED", "SNAPSHOTS"],
      ...["RUNNING", "WAITING", "STEPS", "PREFIX HITS"],
    ],
    models.map((model) => [
      model.name,
      formatBytes(model.weight_bytes),
      formatBytes(model.kv_bytes),
      percent(model.blocks.held, model.blocks.total),
      String(model.blocks.shared),
      model.slots ? `${model.slots.snapshots} of ${model.slots.total} slots` : "-",
      String(model.running),
      String(model.waiting),
      String(model.steps),
      percent(model.cached_tokens, model.prompt_tokens),
    ]),
  );
}

function rankTable(ranks: NonNullable<PsResponse["ranks"]>): string {
  return table(
    ["RANK", "HOST", "PROCESS", "STATE"],
    ranks.map(({ rank, host, pid, state }) => [String(rank), host, String(pid ?? "-"), state]),
  );
}

function collectivesOf({ name, collectives, ...model }: PsResponse["models"][number]): string[] {
  if (!collectives) return [];
  const { sent_bytes, ms } = collectives;
  const tokens = model.prompt_tokens - model.cached_tokens + model.generated_tokens;
  const each = tokens === 0 ? "" : `, ${formatBytes(Math.round(sent_bytes / tokens))} per token`;
  const seconds = (ms / 1000).toFixed(1);
  return [`${name}: rank 0 sent ${formatBytes(sent_bytes)}${each}; ${seconds} s in collectives`];
}

function requestTable(requests: PsResponse["requests"]): string {
  return table(
    ["REQUEST", "MODEL", "TIER", "STATE", "AGE", "STANDING", "PROMPT", "GENERATED", "PREEMPTED"],
    requests.map((request) => [
      // Further answers to the same request are numbered.
      request.index === 0 ? request.id : `${request.id}/${request.index}`,
      request.model,
      request.tier,
      request.state,
      ageOf(request.age_ms),
      request.standing.toFixed(1),
      String(request.prompt_tokens),
      String(request.generated_tokens),
      String(request.preemptions),
    ]),
  );
}

function percent(part: number, whole: number): string {
  return whole === 0 ? "-" : `${((100 * part) / whole).toFixed(0)}%`;
}

/** Formats a duration, such as 3.2 s or 10 min 14 s. */
function ageOf(ms: number): string {
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
}
