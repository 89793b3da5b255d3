// Uploads: a file is written as it arrives, within what its key may store.
import { type FileHandle, open, rm } from "node:fs/promises";
import type { Settings } from "../../config/settings.ts";
import { ApiError, badRequest } from "../frame/errors.ts";
import type { FileSink } from "../frame/multipart.ts";

/** What one upload has received so far. */
type Received = { readonly owner: string; bytes: number };

/** The room of one upload. */
export type UploadRoom = {
  /** Throws if the file may not have so many bytes. */
  grow(bytes: number): void;
  leave(): void;
};

/** The uploads of all keys that are under way: what they have received counts against the key's limits. */
export class KeyUploads {
  readonly #limits: Pick<Settings, "maxFiles" | "maxFileSize" | "maxFileStorage">;
  readonly #uploads = new Set<Received>();

  constructor(limits: Pick<Settings, "maxFiles" | "maxFileSize" | "maxFileStorage">) {
    this.#limits = limits;
  }

  /** Throws if the key may not have another file. */
  begin(owner: string, stored: () => { files: number; bytes: number }): UploadRoom {
    const { maxFiles, maxFileSize, maxFileStorage } = this.#limits;
    if (stored().files + this.#of(owner).length >= maxFiles) {
      const message = `The key has ${maxFiles} files, and may have no more: delete some.`;
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

/** A file as it arrives. */
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

  /** The file is complete and on the disk. */
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

  /** Frees the room; the file counts by itself once it is stored. */
  leave(): void {
    this.#room.leave();
  }

  async remove(): Promise<void> {
    await this.#handle?.close().catch(() => {});
    await rm(this.#path, { force: true });
  }
}
