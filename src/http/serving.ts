// What the routes' handlers share.
import type { Settings } from "../config/settings.ts";
import type { EngineClient } from "../engine/client.ts";
import type { Grammars } from "../grammar/grammars.ts";
import type { KeyRing } from "../keys/key-ring.ts";
import type { Logger } from "../log.ts";
import type { Admission } from "../serve/admission.ts";
import type { ServedModels } from "../serve/models.ts";
import type { Encoder } from "../text/encoder.ts";
import type { LazyBatches } from "./lazy-batches.ts";
import type { Metrics } from "./metrics.ts";

export type Serving = {
  engine: EngineClient;
  grammars: Grammars;
  encoder: Encoder;
  models: ServedModels;
  admission: Admission;
  metrics: Metrics;
  batches: LazyBatches;
  ring: KeyRing;
  settings: Settings;
  log: Logger;
};
