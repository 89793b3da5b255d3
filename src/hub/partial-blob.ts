// A partially downloaded blob: `<checksum>.incomplete`, whose first `bytes` bytes are hashed. It remains when a pull is
// interrupted, so that the next one resumes it, and is renamed once it is complete and its checksum matches.
import { constants, type FileHandle, open, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { codeOf, HubError } from "./hub-error.ts";

export type BlobId = {
  /** Hash that names the blob: SHA-256 of the contents (LFS and Xet), or git's hash for small files. */
  readonly kind: "sha256" | "git-sha1";
  readonly checksum: string;
  readonly bytes: number;
};

/** Thrown if the complete file does not match the checksum in the listing. */
export class ChecksumError extends HubError {}

const READ_BYTES = 1 << 20;
const notWritable = ["EACCES", "EPERM", "EROFS", "ENOTDIR", "SQLITE_CANTOPEN"];

export class PartialBlob {
  readonly id: BlobId;
  readonly #folder: string;
  readonly #path: string;
  readonly #file: FileHandle;
  #hash: Bun.CryptoHasher;
  #bytes = 0;
  #hasOldBytes = false;

  private constructor(id: BlobId, folder: string, path: string, file: FileHandle) {
    this.id = id;
    this.#folder = folder;
    this.#path = path;
    this.#file = file;
    this.#hash = hasherOf(id);
  }

  /** Opens a blob; resumes the file of an earlier pull if it belongs to this user. */
  static async open(id: BlobId, folder: string): Promise<PartialBlob> {
    const path = join(folder, `${id.checksum}.incomplete`);
    const file = (await openOurs(path)) ?? (await openNew(path));
    const blob = new PartialBlob(id, folder, path, file);
    try {
      await blob.#hashOldBytes();
    } catch (error) {
      await file.close();
      throw error;
    }
    return blob;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Whether the blob has bytes of an earlier pull, which may explain a wrong checksum. */
  get hasOldBytes(): boolean {
    return this.#hasOldBytes;
  }

  async #hashOldBytes(): Promise<void> {
    const { size } = await this.#file.stat();
    if (size > this.id.bytes) return this.restart();
    const buffer = Buffer.alloc(Math.min(size, READ_BYTES));
    while (this.#bytes < size) {
      const { bytesRead } = await this.#file.read(buffer, 0, buffer.length, this.#bytes);
      if (bytesRead === 0) break;
      this.#hash.update(buffer.subarray(0, bytesRead));
      this.#bytes += bytesRead;
    }
    this.#hasOldBytes = this.#bytes > 0;
  }

  async append(chunk: Uint8Array): Promise<void> {
    if (this.#bytes + chunk.length > this.id.bytes) throw this.#wrong("more bytes than it listed");
    for (let done = 0; done < chunk.length; ) {
      const rest = chunk.subarray(done);
      const { bytesWritten } = await this.#file.write(rest, 0, rest.length, this.#bytes);
      this.#hash.update(rest.subarray(0, bytesWritten));
      this.#bytes += bytesWritten;
      done += bytesWritten;
    }
  }

  async restart(): Promise<void> {
    await this.#file.truncate(0);
    this.#hash = hasherOf(this.id);
    this.#bytes = 0;
    this.#hasOldBytes = false;
  }

  /** Verifies the checksum and gives the blob its final name. */
  async finish(): Promise<void> {
    const found = this.#hash.digest("hex");
    if (this.#bytes !== this.id.bytes || found !== this.id.checksum) {
      throw this.#wrong(`a file whose checksum is ${found}`);
    }
    // The data must be on disk before the rename, since complete blobs are never verified again.
    await this.#file.datasync();
    await rename(this.#path, join(this.#folder, this.id.checksum));
  }

  async discard(): Promise<void> {
    await rm(this.#path, { force: true });
  }

  async close(): Promise<void> {
    await this.#file.close();
  }

  #wrong(found: string): ChecksumError {
    return new ChecksumError(
      `expected ${this.id.bytes} bytes of ${this.id.checksum}, received ${found}`,
    );
  }
}

const { O_RDWR, O_CREAT, O_EXCL, O_NOFOLLOW } = constants;

/** Opens an existing file; returns undefined if it is missing, is a link, or can be changed by other users. */
async function openOurs(path: string): Promise<FileHandle | undefined> {
  try {
    const file = await open(path, O_RDWR | O_NOFOLLOW);
    const stats = await file.stat();
    if (stats.isFile() && stats.nlink === 1 && stats.uid === process.geteuid?.()) return file;
    await file.close();
  } catch (error) {
    // These codes mean that the file is missing, a link, or a socket.
    if (!["ENOENT", "ELOOP", "ENXIO"].includes(codeOf(error) ?? "")) throw error;
  }
}

/** Creates a file, and replaces an existing one. */
async function openNew(path: string): Promise<FileHandle> {
  await rm(path, { force: true });
  return await open(path, O_RDWR | O_CREAT | O_EXCL, 0o666);
}

/** Returns the hasher; git also hashes a header with the file's type and length. */
function hasherOf({ kind, bytes }: BlobId): Bun.CryptoHasher {
  if (kind === "sha256") return new Bun.CryptoHasher("sha256");
  return new Bun.CryptoHasher("sha1").update(`blob ${bytes}\0`);
}

/** Turns an error of the disk into a HubError that tells the user how to fix it; returns other errors unchanged. */
export function diskError(error: unknown, folder: string): unknown {
  const code = codeOf(error);
  if (code === "ENOSPC" || code === "EDQUOT") {
    return new HubError(
      `the disk of ${folder} is full: free some space, or set HF_HUB_CACHE to another disk; ` +
        "the same command resumes the pull",
    );
  }
  if (code !== undefined && notWritable.includes(code)) {
    return new HubError(
      `${folder} cannot be written (${code}): check its permissions, or set HF_HUB_CACHE to another folder`,
    );
  }
  return error;
}
