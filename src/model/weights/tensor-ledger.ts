// The books of a model's weights: which tensors of the checkpoint were asked for and in which shape, how much
// of the file is loaded, and every array made of it. It owns these arrays and frees them all with `free`.
import { LoadError, quoted } from "../../files/load-error.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { hold, Scope } from "../../mlx/scope.ts";
import type { Checkpoint } from "../checkpoint/checkpoint.ts";
import type { StoredTensor } from "../checkpoint/stored/tensor.ts";

export type OnProgress = (loadedBytes: number, totalBytes: number) => void;

export class TensorLedger {
  readonly #checkpoint: Checkpoint;
  readonly #onProgress: OnProgress | undefined;
  /** Nothing is evaluated. */
  readonly #isSketch: boolean;
  /** Those of the checkpoint, and those arranged of them. */
  readonly #tensors: Map<string, StoredTensor>;
  readonly #used = new Set<string>();
  readonly #arrays: MlxArray[] = [];
  /** Transposed views of some of the arrays, and constants: nothing that counts as weights. */
  readonly #views: MlxArray[] = [];
  #totalBytes: number;
  #loadedBytes = 0;

  constructor(checkpoint: Checkpoint, onProgress: OnProgress | undefined, isSketch = false) {
    this.#checkpoint = checkpoint;
    this.#onProgress = onProgress;
    this.#isSketch = isSketch;
    this.#tensors = new Map(checkpoint.tensors);
    this.#totalBytes = checkpoint.tensors.values().reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** How many bytes of arrays there are. */
  get bytes(): number {
    return this.#arrays.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  get(name: string): StoredTensor | undefined {
    return this.#tensors.get(name);
  }

  /** All that begin so. */
  names(prefix: string): string[] {
    return [...this.#tensors.keys()].filter((name) => name.startsWith(prefix));
  }

  /** The tensor, which must be there. */
  find(name: string): StoredTensor {
    const stored = this.#tensors.get(name);
    if (!stored) throw new LoadError(`${this.#checkpoint.path}: tensor ${name} is missing`);
    return stored;
  }

  /** The tensor, which must be there and have this shape. */
  stored(name: string, shape: readonly number[]): StoredTensor {
    const stored = this.find(name);
    if (stored.shape.join() !== shape.join()) {
      throw this.disagreement(name, shape, `(${stored.shape})`);
    }
    return stored;
  }

  disagreement(name: string, shape: readonly number[], found: string): LoadError {
    const { path } = this.#checkpoint;
    return new LoadError(`${path}: ${name}: expected shape (${shape}), found ${found}`);
  }

  /** Gives a tensor that the file holds in pieces, or in another order, the name and shape we ask for. */
  arrange(sources: readonly string[], arrange: (stored: StoredTensor[]) => StoredTensor): void {
    const arranged = arrange(sources.map((name) => this.find(name)));
    this.#tensors.set(arranged.name, arranged);
    for (const name of sources) this.#used.add(name);
    this.#used.delete(arranged.name);
  }

  /** Of this tensor only a part is loaded, by its own name. */
  cut(name: string, part: (stored: StoredTensor) => StoredTensor): void {
    const stored = this.find(name);
    const own = part(stored);
    this.#tensors.set(name, own);
    this.#totalBytes -= stored.bytes - own.bytes;
  }

  /** It is not loaded: another rank has it. */
  skip(name: string): void {
    this.#totalBytes -= this.find(name).bytes;
    this.#used.add(name);
  }

  rename(name: string, renamed: string): void {
    this.arrange([name], ([stored]) => ({ ...stored!, name: renamed }));
    this.#tensors.delete(name);
  }

  leaveOut(names: RegExp): void {
    for (const name of this.names("")) if (names.test(name)) this.#tensors.delete(name);
  }

  /** Takes an array that was loaded from these tensors. */
  own(made: MlxArray, ...sources: StoredTensor[]): MlxArray {
    this.#arrays.push(made);
    for (const { name, bytes } of sources) {
      this.#used.add(name);
      this.#loadedBytes += bytes;
    }
    this.#onProgress?.(this.#loadedBytes, this.#totalBytes);
    return made;
  }

  /** Takes a view of an array, or a constant. */
  keep(view: MlxArray): MlxArray {
    if (!this.#isSketch) view.evaluate();
    this.#views.push(hold(view));
    return view;
  }

  /** Makes an array that counts as weights. */
  compute(make: () => MlxArray): MlxArray {
    using _ = new Scope();
    const made = hold(make());
    this.#arrays.push(made);
    if (!this.#isSketch) made.evaluate();
    return made;
  }

  /** Throws where the file has tensors that the configuration does not account for. */
  finish(ignored: readonly RegExp[]): void {
    for (const name of this.#tensors.keys()) {
      if (this.#used.has(name) || ignored.some((pattern) => pattern.test(name))) continue;
      const { path } = this.#checkpoint;
      throw new LoadError(`${path}: the configuration has no place for tensor ${quoted(name)}`);
    }
  }

  free(): void {
    for (const owned of [...this.#views.splice(0), ...this.#arrays.splice(0)]) owned.free();
  }
}
