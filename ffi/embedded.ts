// The native libraries embedded in the executable: none in a checkout. scripts/build.ts replaces this
// file with a list.

export type EmbeddedFile = {
  /** Relative to the folder that the libraries are extracted to. */
  path: string;
  /** Path inside the executable; compressed with zstd. */
  source: string;
  sha256: string;
};

export const embedded: readonly EmbeddedFile[] = [];
