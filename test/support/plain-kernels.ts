// The kernels that a Metal device launches on pools, in plain arithmetic: what one launch computes, from its inputs and
// its constants as the kernel gets them. All numbers are float32. Other than PlainAttention and plainRecurrence they
// stand in for single launches, so that the code that launches kernels (src/kernels) is what runs.
import {
  attendHeads,
  attendLatents,
  copy,
  decode,
  decodeLatentParts,
  merge,
  placesOf,
  writeHeads,
  writeLatents,
} from "./plain-attention-kernels.ts";
import type { PlainKernel } from "./plain-kernel.ts";
import { convolve, scan } from "./plain-recurrence-kernels.ts";

/** By their names in src/kernels. */
export const plainKernels: Readonly<Record<string, PlainKernel>> = {
  prepare: {
    writes: ["keys", "values"],
    run: (inputs, c, output) => {
      writeHeads(inputs, c, placesOf(inputs.places!), output);
    },
  },
  attend: {
    writes: [],
    run: (inputs, c, output) => {
      attendHeads(inputs, c, inputs.queries!, placesOf(inputs.places!), output);
    },
  },
  decode: { writes: ["keys", "values"], run: decode },
  copy: { writes: ["pool"], run: copy },
  latent_write: { writes: ["pool"], run: writeLatents },
  latent_attend: {
    writes: [],
    run: (inputs, c, output) => {
      attendLatents(inputs, c, placesOf(inputs.places!), output);
    },
  },
  latent_decode_parts: { writes: ["pool"], run: decodeLatentParts },
  merge: { writes: [], run: merge },
  convolve: { writes: ["pool"], run: convolve },
  scan: { writes: ["pool"], run: scan },
  scan_heads: { writes: ["pool"], run: scan },
};
