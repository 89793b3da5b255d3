// What the routes' handlers share.
import type { Settings } from "../../config/settings.ts";
import type { EngineClient } from "../../engine/client.ts";
import type { Grammars } from "../../grammar/grammars.ts";
import type { Environment } from "../../hub/settings.ts";
import type { KeyRing } from "../../keys/key-ring.ts";
import type { Logger } from "../../log.ts";
import type { RankGroup } from "../../ranks/group.ts";
import type { Admission } from "../../serve/admission.ts";
import type { ServedModels } from "../../serve/models.ts";
import type { StoredResponses } from "../../serve/stored-responses.ts";
import type { Encoder } from "../../text/encoder/encoder.ts";
import type { EngineFeed } from "./engine-feed.ts";
import type { LazyBatches } from "./lazy-batches.ts";
import type { Metrics } from "./metrics.ts";

export type Serving = {
  engine: EngineClient;
  /** Where models are divided among several processes. */
  ranks: RankGroup | undefined;
  grammars: Grammars;
  encoder: Encoder;
  models: ServedModels;
  admission: Admission;
  metrics: Metrics;
  feed: EngineFeed;
  responses: StoredResponses;
  batches: LazyBatches;
  ring: KeyRing;
  settings: Settings;
  /** Where it listens, once it does. */
  url: string | undefined;
  /** Where the cache of models is, and the hub. */
  env: Environment;
  /** How long a stream may be without events before a heartbeat is sent. */
  heartbeatMs: number;
  /** Errors outside any request. */
  uncaughtErrors: number;
  log: Logger;
};
