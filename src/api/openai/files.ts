// /v1/files
import { z } from "zod";
import { optional } from "../field.ts";

export const expiresAfter = z.object({
  anchor: z.literal("created_at").describe("Only created_at."),
  seconds: z.int().min(3600).max(2_592_000).describe("From an hour to 30 days."),
});

/** The form's fields, without the file. */
export const FileFields = z.object({
  purpose: z.literal("batch").describe("Only batch: the input of a batch."),
  expires_after: optional(expiresAfter).describe(
    "When the file is deleted; as a form, the fields `expires_after[anchor]` and `expires_after[seconds]`.",
  ),
});

export const FileUpload = FileFields.extend({
  file: z.string().meta({ format: "binary" }).describe("The content, with a file name."),
}).meta({ id: "FileUpload" });

export const FileObject = z
  .object({
    id: z.string(),
    object: z.literal("file"),
    bytes: z.int(),
    created_at: z.int().describe("Unix time, in seconds."),
    expires_at: z.int().optional(),
    filename: z.string(),
    purpose: z.enum(["batch", "batch_output"]),
    status: z.literal("processed"),
  })
  .meta({ id: "FileObject" });
export type FileObject = z.infer<typeof FileObject>;

export const FileList = z
  .object({
    object: z.literal("list"),
    data: z.array(FileObject),
    first_id: z.string().nullable(),
    last_id: z.string().nullable(),
    has_more: z.boolean(),
  })
  .meta({ id: "FileList" });
export type FileList = z.infer<typeof FileList>;

export const FileDeleted = z
  .object({ id: z.string(), object: z.literal("file"), deleted: z.literal(true) })
  .meta({ id: "FileDeleted" });
export type FileDeleted = z.infer<typeof FileDeleted>;

/** Returns the schema of a paginated list's query, with at most `max` items per page. */
export const pageQuery = (max: number, preset: number) =>
  z.object({
    after: z.string().optional(),
    limit: z.coerce.number<string>().int().min(1).max(max).default(preset),
  });

export const FileQuery = pageQuery(10_000, 10_000).extend({
  order: z.enum(["asc", "desc"]).optional(),
  purpose: z.string().optional(),
});
