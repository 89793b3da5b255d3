// Uploads: files are written to disk as they arrive, within the limits of their key.
import { type FileHandle, open, rm } from "node:fs/promises";
import type { Settings } from "../../config/settings.ts";
import { ApiError, badRequest } from "../frame/errors.ts";
import type { FileSink } from "../frame/multipart.ts";

/** A running upload: the name of its API key, and the bytes received so far. */
type Received = { readonly owner: string; bytes: number };

/** The file and bytes that a running upload occupies within the storage limits of its API key. */
export type UploadRoom = {
  /** Reserves more bytes; throws if they exceed a limit. */
  grow(bytes: number): void;
  leave(): void;
};

/** The running uploads of all API keys; their files and bytes count against the storage limits of their keys. */
export class KeyUploads {
  readonly #limits: Pick<Settings, "maxFiles" | "maxFileSize" | "maxFileStorage">;
  readonly #uploads = new Set<Received>();

  constructor(limits: Pick<Settings, "maxFiles" | "maxFileSize" | "maxFileStorage">) {
    this.#limits = limits;
  }

  /** Counts a new upload as a file of its API key; throws if the key has reached its maximum number of files. */
  begin(owner: string, stored: () => { files: number; bytes: number }): UploadRoom {
    const { maxFiles, maxFileSize, maxFileStorage } = this.#limits;
    if (stored().files + this.#of(owner).length >= maxFiles) {
      const message = `The key already has the maximum of ${maxFiles} files: delete some.`;
      throw badRequest("file", message, "file_limit_exceeded");
    }
    const upload = { owner, bytes: 0 };
    this.#uploads.add(upload);
    return {
      grow: (bytes) => {
        upload.bytes += bytes;
        if (upload.bytes > maxFileSize) {
          const message = `The file is larger than ${maxFileSize} bytes.`;
          throw new ApiError(413, message, { param: "file" });
        }
        const received = this.#of(owner).reduce((sum, each) => sum + each.bytes, 0);
        if (stored().bytes + received <= maxFileStorage) return;
        const message = `The key may store ${maxFileStorage} bytes: delete some files.`;
        throw badRequest("file", message, "storage_limit_exceeded");
      },
      leave: () => void this.#uploads.delete(upload),
    };
  }

  #of(owner: string): Received[] {
    return [...this.#uploads].filter((upload) => upload.owner === owner);
  }
}

/** Writes the file of one upload. */
export class Upload {
  readonly #path: string;
  readonly #room: UploadRoom;
  #filename: string | undefined;
  #handle: FileHandle | undefined;
  #bytes = 0;

  constructor(path: string, room: UploadRoom) {
    this.#path = path;
    this.#room = room;
  }

  begin(filename: string): FileSink {
    if (this.#filename !== undefined) throw badRequest("file", "The form has more than one file.");
    this.#filename = filename.slice(0, 255);
    return async (piece) => {
      this.#bytes += piece.length;
      this.#room.grow(piece.length);
      this.#handle ??= await open(this.#path, "wx", 0o600);
      await this.#handle.appendFile(piece);
    };
  }

  /** Syncs the complete file to disk. */
  async end(): Promise<{ filename: string; bytes: number }> {
    if (this.#filename === undefined) {
      const message = "Missing required parameter: 'file'.";
      throw badRequest("file", message, "missing_required_parameter");
    }
    if (!this.#handle) throw badRequest("file", "Invalid 'file': it is empty.", "empty_file");
    await this.#handle.sync();
    await this.#handle.close();
    return { filename: this.#filename, bytes: this.#bytes };
  }

  /** Releases the upload's reservation; a complete file counts against the limits as a stored file instead. */
  leave(): void {
    this.#room.leave();
  }

  async remove(): Promise<void> {
    await this.#handle?.close().catch(() => {});
    await rm(this.#path, { force: true });
  }
}
