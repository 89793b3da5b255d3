// The environment variables shared by Hugging Face tools: the cache folder, the hub, the token, and offline mode.
import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join, resolve } from "node:path";
import { HubError, quoted } from "./hub-error.ts";

export type Environment = Readonly<Record<string, string | undefined>>;

/** Expands a leading `~`, as huggingface_hub does. */
export function expandHome(path: string, env: Environment): string {
  const home = env.HOME || homedir();
  if (path === "~") return home;
  return path.startsWith("~/") ? join(home, path.slice(2)) : path;
}

function hfHome(env: Environment): string {
  const cache = env.XDG_CACHE_HOME || join(env.HOME || homedir(), ".cache");
  return expandHome(env.HF_HOME || join(cache, "huggingface"), env);
}

/** Returns the folder of the settings file, the keys file and the user's model names. */
export function configFolder(env: Environment): string {
  return join(env.XDG_CONFIG_HOME || join(env.HOME || homedir(), ".config"), "mlx-serve");
}

/** Returns the cache's folder, which contains folders such as models--org--name. */
export function hubCache(env: Environment = process.env): string {
  const named = env.HF_HUB_CACHE || env.HUGGINGFACE_HUB_CACHE;
  return resolve(named ? expandHome(named, env) : join(hfHome(env), "hub"));
}

/** Returns the token: `HF_TOKEN`, or the one stored by `hf auth login`. */
export function hubToken(env: Environment = process.env): string | undefined {
  const named = (env.HF_TOKEN || env.HUGGING_FACE_HUB_TOKEN)?.trim();
  if (named) return named;
  try {
    const path = env.HF_TOKEN_PATH || join(hfHome(env), "token");
    return readFileSync(expandHome(path, env), "utf8").trim() || undefined;
  } catch {
    return undefined;
  }
}

/** Returns the URL of the hub, without a trailing slash. */
export function hubEndpoint(env: Environment = process.env): string {
  const endpoint = env.HF_ENDPOINT || "https://huggingface.co";
  if (!/^https?:\/\/[^/]/.test(endpoint) || !URL.canParse(endpoint)) {
    throw new HubError(`HF_ENDPOINT must be an http or https URL, not ${quoted(endpoint)}`);
  }
  return endpoint.replace(/\/+$/, "");
}

export function isOffline(env: Environment = process.env): boolean {
  const value = env.HF_HUB_OFFLINE || env.TRANSFORMERS_OFFLINE || "";
  return ["1", "ON", "YES", "TRUE"].includes(value.toUpperCase());
}
