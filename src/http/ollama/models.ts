// Ollama's endpoints about models.
import type { Context } from "hono";
import {
  OllamaDeleteRequest,
  type OllamaDetails,
  type OllamaPs,
  type OllamaShow,
  OllamaShowRequest,
  type OllamaTags,
  type OllamaVersion,
} from "../../api/ollama/models.ts";
import { thinks } from "../../conversation/thinks.ts";
import { totalBytes } from "../../hub/bytes.ts";
import { removeFromCache, repoPath } from "../../hub/cache.ts";
import { HubError, ModelNotFoundError } from "../../hub/hub-error.ts";
import { fullName } from "../../hub/popular-models.ts";
import { parseRepoName } from "../../hub/repo-name.ts";
import { hubCache } from "../../hub/settings.ts";
import type { ModelSource } from "../../hub/source.ts";
import { counted } from "../../serve/model-description.ts";
import { NoRoomError } from "../../serve/models.ts";
import type { HttpEnv } from "../frame/env.ts";
import { ApiError } from "../frame/errors.ts";
import { readRequest } from "../frame/json-body.ts";
import type { BodyReader, Models, Runtime } from "../frame/serving.ts";
import { knownOf, sourceOf } from "../owner/known-models.ts";

/** The version of Ollama's API; clients check whether it is new enough. */
const ollamaVersion = "0.12.11";

export function ollamaVersionHandler() {
  return (c: Context<HttpEnv>): Response =>
    c.json({ version: ollamaVersion } satisfies OllamaVersion);
}

export function listTags({ models }: Models) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const listed: OllamaTags["models"] = [];
    for (const { name, createdMs } of models.list()) {
      const source = sourceOf(models, name);
      if (!source) continue;
      const { files = [] } = knownOf(source)?.description ?? {};
      const size = totalBytes(files);
      const modified_at = new Date(createdMs).toISOString();
      listed.push({ ...modelFields(name, source), size, modified_at });
      // Yields to the event loop between models, since reading the headers of weights is slow.
      await new Promise((resolve) => setImmediate(resolve));
    }
    return c.json({ models: listed } satisfies OllamaTags);
  };
}

/** Lists the loaded models; GET /ps tells the owner more. */
export function listLoaded({ models, engine }: Runtime) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const { backend } = await engine.inspect();
    const loaded = models.loaded().map(({ info, source, expiresMs }) => {
      const size = info.weightBytes + info.kvBytes;
      return {
        ...modelFields(info.model, source),
        size,
        size_vram: backend === "cpu" ? 0 : size,
        expires_at: timeOf(expiresMs),
        context_length: info.maxLength,
      };
    });
    return c.json({ models: loaded } satisfies OllamaPs);
  };
}

export function showModel(serving: BodyReader & Models) {
  const { models } = serving;
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const { model: name } = await readRequest(c, serving, OllamaShowRequest);
    const source = models.sourceOf(name);
    const about = knownOf(source);
    const { architecture = "", parameters, contextLength } = about?.description ?? {};
    // A loaded model may use a template other than the one in its files.
    const template = models.loadedText(name)?.template ?? about?.template ?? "";
    const loaded = models.loaded().find((each) => each.source === source);
    // Prefers the loaded model's limit, since memory may not suffice for the context length that it was trained for.
    const length = loaded?.info.maxLength ?? contextLength;
    const listed = models.list().find((each) => each.name === name);
    return c.json({
      modelfile: "",
      parameters: "",
      template,
      details: detailsOf(source),
      model_info: {
        "general.architecture": architecture,
        ...(parameters !== undefined && { "general.parameter_count": parameters }),
        ...(length !== undefined && { [`${architecture}.context_length`]: length }),
      },
      capabilities: capabilitiesOf(about?.isEmbedder === true, template),
      modified_at: new Date(listed?.createdMs ?? 0).toISOString(),
    } satisfies OllamaShow);
  };
}

export function deleteModel(serving: BodyReader & Models) {
  const { models, env } = serving;
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const { model: name } = await readRequest(c, serving, OllamaDeleteRequest);
    const repo = parseRepoName(fullName(name, env));
    if (!repo || repo.file !== undefined)
      throw new ModelNotFoundError("the name is not that of a repo");
    const cache = hubCache(env);
    await models.release(repoPath(cache, repo.id)).catch((error: unknown) => {
      if (!(error instanceof NoRoomError)) throw error;
      throw new ApiError(409, `The model cannot be deleted: ${error.message}.`);
    });
    try {
      removeFromCache(cache, repo.id, repo.revision);
    } catch (error) {
      if (error instanceof ModelNotFoundError || !(error instanceof HubError)) throw error;
      throw new ApiError(409, "The model is being pulled.");
    }
    return c.body(null);
  };
}

function modelFields(name: string, source: ModelSource) {
  const digest = new Bun.CryptoHasher("sha256").update(source.path).digest("hex");
  return { name, model: name, digest, details: detailsOf(source) };
}

function detailsOf(source: ModelSource): OllamaDetails {
  const {
    architecture = "",
    parameters,
    quantization,
    dtype = "",
  } = knownOf(source)?.description ?? {};
  return {
    parent_model: "",
    format: source.kind === "gguf" ? "gguf" : "safetensors",
    family: architecture,
    families: architecture === "" ? [] : [architecture],
    parameter_size: parameters === undefined ? "" : counted(parameters).replace(" ", ""),
    quantization_level: quantization ?? dtype.toUpperCase(),
  };
}

/** Returns a model's capabilities. Every chat template supports tools: one without them gets a default format. */
function capabilitiesOf(embeds: boolean, template: string): OllamaShow["capabilities"] {
  if (embeds) return ["embedding"];
  if (template === "") return ["completion"];
  return ["completion", "tools", ...(thinks(template) ? ["thinking" as const] : [])];
}

/** Formats a Unix time; infinity becomes a date that clients can parse. */
function timeOf(ms: number): string {
  return Number.isFinite(ms) ? new Date(ms).toISOString() : "9999-12-31T23:59:59Z";
}
