// The server's parts. Each handler takes only the parts that it uses.
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

/** Parts for reading request bodies. */
export type BodyReader = { settings: Settings; encoder: Encoder };

/** Parts for finding and loading models; `env` locates the model cache and the hub. */
export type Models = { models: ServedModels; env: Environment };

/** Parts for running models. */
export type Runtime = Models & {
  engine: EngineClient;
  /** The processes that a model is divided among; undefined if it runs in one process. */
  ranks: RankGroup | undefined;
  admission: Admission;
  /** Number of errors outside of any request. */
  uncaughtErrors: number;
};

/** Parts for managing API keys. */
export type Keys = { ring: KeyRing; metrics: Metrics };

/** Parts for generating with a model. */
export type Generating = BodyReader &
  Runtime &
  Keys & {
    grammars: Grammars;
    feed: EngineFeed;
    responses: StoredResponses;
    /** Milliseconds without events after which a stream gets a heartbeat. */
    heartbeatMs: number;
    log: Logger;
  };

/** Parts for storing files and batches. */
export type BatchStore = { batches: LazyBatches };

export type Serving = Generating &
  BatchStore & {
    /** The server's URL; undefined until it listens. */
    url: string | undefined;
  };
