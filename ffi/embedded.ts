// The native libraries that the executable carries. In a checkout there are none: scripts/build.ts puts
// a list in this file's place.

export type EmbeddedFile = {
  /** Below the folder that the libraries are extracted to. */
  path: string;
  /** Where the executable has it, compressed with zstd. */
  source: string;
  sha256: string;
};

export const embedded: readonly EmbeddedFile[] = [];
