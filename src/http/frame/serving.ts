// Shared dependencies of the routes' handlers.
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
  /** Set if models are divided among several processes. */
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
  /** The server's URL, once it listens. */
  url: string | undefined;
  /** Locates the model cache and the hub. */
  env: Environment;
  /** Silence in a stream after which a heartbeat is sent. */
  heartbeatMs: number;
  /** Number of errors outside of any request. */
  uncaughtErrors: number;
  log: Logger;
};
