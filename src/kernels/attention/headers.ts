// Headers that this folder's kernels include, in addition to those of the host folder.
import attention from "./attention.h" with { type: "text" };
import attentionLanes from "./attention-lanes.h" with { type: "text" };
import attentionTiles from "./attention-tiles.h" with { type: "text" };
import head from "./head.h" with { type: "text" };
import latent from "./latent.h" with { type: "text" };
import latentTiles from "./latent-tiles.h" with { type: "text" };

export const attentionHeaders: ReadonlyMap<string, string> = new Map([
  ["attention.h", attention],
  ["attention-lanes.h", attentionLanes],
  ["attention-tiles.h", attentionTiles],
  ["head.h", head],
  ["latent.h", latent],
  ["latent-tiles.h", latentTiles],
]);
