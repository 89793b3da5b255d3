// Lists the native libraries embedded in the executable. The list is empty in a checkout; scripts/build.ts replaces
// this file.

export type EmbeddedFile = {
  /** Path of the file in the folder that the libraries are extracted to. */
  path: string;
  /** Path inside the executable, where the file is compressed with zstd. */
  source: string;
  sha256: string;
};

export const embedded: readonly EmbeddedFile[] = [];
