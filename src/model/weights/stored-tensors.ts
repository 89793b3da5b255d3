// Finds a checkpoint's tensors by name, and rearranges them into those that the model asks for. Nothing is read here:
// an arranged tensor reads its sources when it is loaded. Counts loaded bytes and knows unused tensors.
import { LoadError, quoted } from "../../files/load-error.ts";
import type { Checkpoint } from "../checkpoint/checkpoint.ts";
import type { StoredTensor } from "../checkpoint/stored/tensor.ts";

export type OnProgress = (loadedBytes: number, totalBytes: number) => void;

export class StoredTensors {
  readonly #path: string;
  readonly #onProgress: OnProgress | undefined;
  readonly #tensors: Map<string, StoredTensor>;
  readonly #used = new Set<string>();
  #totalBytes: number;
  #loadedBytes = 0;

  constructor({ path, tensors }: Checkpoint, onProgress: OnProgress | undefined) {
    this.#path = path;
    this.#onProgress = onProgress;
    this.#tensors = new Map(tensors);
    this.#totalBytes = this.bytesOf("");
  }

  has(name: string): boolean {
    return this.#tensors.has(name);
  }

  hasAny(name: RegExp): boolean {
    return this.#tensors.keys().some((each) => name.test(each));
  }

  get(name: string): StoredTensor | undefined {
    return this.#tensors.get(name);
  }

  /** Returns a tensor. Throws if the file has none of this name. */
  find(name: string): StoredTensor {
    const stored = this.#tensors.get(name);
    if (!stored) throw new LoadError(`${this.#path}: tensor ${name} is missing`);
    return stored;
  }

  /** Returns a tensor. Throws unless the file has it with this shape. */
  expect(name: string, shape: readonly number[]): StoredTensor {
    const stored = this.find(name);
    if (stored.shape.join() !== shape.join()) {
      throw this.mismatch(name, shape, `(${stored.shape})`);
    }
    return stored;
  }

  mismatch(name: string, shape: readonly number[], found: string): LoadError {
    return new LoadError(`${this.#path}: ${name}: expected shape (${shape}), found ${found}`);
  }

  /** Returns the bytes of all tensors whose names have this prefix. */
  bytesOf(prefix: string): number {
    let bytes = 0;
    for (const [name, each] of this.#tensors) if (name.startsWith(prefix)) bytes += each.bytes;
    return bytes;
  }

  /** Makes one tensor from `sources`. `arrange` returns it, with its name. */
  arrange(sources: readonly string[], arrange: (stored: StoredTensor[]) => StoredTensor): void {
    const arranged = arrange(sources.map((name) => this.find(name)));
    this.#tensors.set(arranged.name, arranged);
    for (const name of sources) this.#used.add(name);
    this.#used.delete(arranged.name);
  }

  /** Gives a tensor other axes for the same elements. */
  reshape(name: string, from: readonly number[], to: readonly number[]): void {
    this.expect(name, from);
    this.arrange([name], ([stored]) => ({ ...stored!, shape: to }));
  }

  /** Reshapes a tensor to `shape` if the number of elements is the same. */
  flatten(name: string, shape: readonly number[]): void {
    const sizeOf = (axes: readonly number[]) => axes.reduce((a, b) => a * b, 1);
    const { shape: found } = this.find(name);
    if (sizeOf(found) === sizeOf(shape)) this.reshape(name, found, shape);
  }

  /** Replaces a tensor by a part of it, so that only this part is loaded. */
  cut(name: string, part: (stored: StoredTensor) => StoredTensor): void {
    const stored = this.find(name);
    const own = part(stored);
    this.#tensors.set(name, own);
    this.#totalBytes -= stored.bytes - own.bytes;
  }

  /** Marks a tensor as used though it is not loaded here: another rank loads it. */
  skip(name: string): void {
    this.#totalBytes -= this.find(name).bytes;
    this.#used.add(name);
  }

  /** Replaces prefixes of names. */
  rename(prefixes: Readonly<Record<string, string>>): void {
    for (const [from, to] of Object.entries(prefixes)) {
      this.renameEach((name) => (name.startsWith(from) ? to + name.slice(from.length) : name));
    }
  }

  /** Replaces the first occurrence of each part in every tensor's name, in the order of the parts. */
  renameParts(parts: Readonly<Record<string, string>>): void {
    const all = Object.entries(parts);
    this.renameEach((name) => all.reduce((now, [from, to]) => now.replace(from, to), name));
  }

  renameEach(rename: (name: string) => string): void {
    for (const name of [...this.#tensors.keys()]) {
      const renamed = rename(name);
      if (renamed === name) continue;
      this.arrange([name], ([stored]) => ({ ...stored!, name: renamed }));
      this.#tensors.delete(name);
    }
  }

  /** Drops tensors that no part of the model uses. */
  leaveOut(names: RegExp): void {
    for (const name of this.#tensors.keys()) if (names.test(name)) this.#tensors.delete(name);
  }

  /** Marks tensors as loaded, and reports the progress. */
  loaded(sources: readonly StoredTensor[]): void {
    for (const { name, bytes } of sources) {
      this.#used.add(name);
      this.#loadedBytes += bytes;
    }
    this.#onProgress?.(this.#loadedBytes, this.#totalBytes);
  }

  /** Throws if the file has tensors that the configuration does not account for. */
  finish(ignored: readonly RegExp[]): void {
    for (const name of this.#tensors.keys()) {
      if (this.#used.has(name) || ignored.some((pattern) => pattern.test(name))) continue;
      const tensor = `tensor ${quoted(name)}`;
      throw new LoadError(`${this.#path}: the configuration has no place for ${tensor}`);
    }
  }
}
