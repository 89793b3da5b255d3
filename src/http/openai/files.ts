// /v1/files: the input and output of batches. A key sees only its own files; the owner may read all.
import { existsSync } from "node:fs";
import type { Context } from "hono";
import {
  type FileDeleted,
  FileFields,
  type FileList,
  type FileObject,
  FileQuery,
} from "../../api/openai/files.ts";
import { nowSeconds, type StoredFile } from "../../batch/batch.ts";
import { newId } from "../../batch/store.ts";
import type { Settings } from "../../config/settings.ts";
import type { HttpEnv } from "../frame/env.ts";
import { ApiError, badRequest } from "../frame/errors.ts";
import { unlessGone } from "../frame/json-body.ts";
import { type LazyBatches, storageError } from "../frame/lazy-batches.ts";
import { readForm } from "../frame/multipart.ts";
import type { BatchStore } from "../frame/serving.ts";
import { KeyUploads, Upload } from "./upload.ts";

export function uploadFile({ batches, settings }: BatchStore & { settings: Settings }) {
  const uploads = new KeyUploads(settings);
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const { store } = batches.open;
    const owner = c.get("caller").name;
    const id = newId("file");
    const room = uploads.begin(owner, () => store.usage(owner));
    const upload = new Upload(store.pathOf(id), room);
    try {
      const fields = await unlessGone(
        c.req.raw,
        readForm(c.req.raw, ({ field, filename }) => {
          if (field !== "file")
            throw badRequest(field, `The form has an unexpected file '${field}'.`);
          return upload.begin(filename);
        }),
      );
      const { expires_after: expiry } = FileFields.parse(fieldsOf(fields));
      const { filename, bytes } = await upload.end();
      const createdAt = nowSeconds();
      const expiresAt = expiry && createdAt + expiry.seconds;
      const origin = { owner, filename, purpose: "batch" } as const;
      const file: StoredFile = { id, ...origin, bytes, createdAt, expiresAt };
      store.addFile(file);
      return c.json(wireFile(file));
    } catch (error) {
      await upload.remove();
      throw storageError(error);
    } finally {
      upload.leave();
    }
  };
}

export function listFiles({ batches }: BatchStore) {
  return (c: Context<HttpEnv>): Response => {
    const { purpose, ...page } = FileQuery.parse(c.req.query());
    const { store } = batches.open;
    const { name } = c.get("caller");
    const { data, hasMore } = store.files(name, purpose, page);
    return c.json(listOf(data.map(wireFile), hasMore) satisfies FileList);
  };
}

export function getFile({ batches }: BatchStore) {
  return (c: Context<HttpEnv>): Response => c.json(wireFile(readableFile(c, batches)));
}

export function fileContent({ batches }: BatchStore) {
  return (c: Context<HttpEnv>): Response => {
    const path = batches.open.store.pathOf(readableFile(c, batches).id);
    // Another program may have removed the file from the folder.
    if (!existsSync(path)) throw unknownFile();
    return new Response(Bun.file(path).stream(), {
      headers: { "Content-Type": "application/octet-stream", "Transfer-Encoding": "chunked" },
    });
  };
}

export function deleteFile({ batches }: BatchStore) {
  return (c: Context<HttpEnv>): Response => {
    const { id } = ownFile(c, batches);
    batches.open.store.deleteFile(id);
    return c.json({ id, object: "file", deleted: true } satisfies FileDeleted);
  };
}

/** Returns the file in the path; throws if it belongs to another key, as if it did not exist. */
function ownFile(c: Context<HttpEnv>, batches: LazyBatches): StoredFile {
  return fileOf(c.get("caller").name, c, batches);
}

function readableFile(c: Context<HttpEnv>, batches: LazyBatches): StoredFile {
  const { name, owner } = c.get("caller");
  return fileOf(owner ? undefined : name, c, batches);
}

/** Returns the file in the path. `key`: its required owner; undefined allows any. */
function fileOf(key: string | undefined, c: Context<HttpEnv>, batches: LazyBatches): StoredFile {
  const file = batches.open.store.file(key, c.req.param("id") ?? "");
  if (file) return file;
  throw unknownFile();
}

function unknownFile(): ApiError {
  const message = "The file does not exist: GET /v1/files lists the files of this key.";
  return new ApiError(404, message, { param: "id", code: "file_not_found" });
}

/** Returns one page of a list, in OpenAI's format. */
export function listOf<T extends { id: string }>(data: T[], hasMore: boolean) {
  return {
    object: "list" as const,
    data,
    first_id: data[0]?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
    has_more: hasMore,
  };
}

/** Converts the form's fields, such as `expires_after[anchor]`, to an object with nested fields. */
function fieldsOf(fields: ReadonlyMap<string, string>): object {
  const anchor = fields.get("expires_after[anchor]");
  const seconds = fields.get("expires_after[seconds]");
  const hasExpiry = anchor !== undefined || seconds !== undefined;
  return {
    purpose: fields.get("purpose"),
    ...(hasExpiry && { expires_after: { anchor, seconds: seconds && Number(seconds) } }),
  };
}

function wireFile({ id, bytes, createdAt, expiresAt, filename, purpose }: StoredFile): FileObject {
  return {
    id,
    object: "file",
    bytes,
    created_at: createdAt,
    ...(expiresAt !== undefined && { expires_at: expiresAt }),
    filename,
    purpose,
    status: "processed",
  };
}
