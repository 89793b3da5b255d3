// The engine's state as sent by its feed: the content of /ps, with latencies, memory and the block map.
import type { StateEvent } from "../../api/owner/engine.ts";
import type { Metrics } from "../frame/metrics.ts";
import type { Runtime } from "../frame/serving.ts";
import { psOf } from "./admin.ts";
import { wireMemory } from "./model-states.ts";

/** Letters of the block map, by block state: free, cached, held, shared. */
const letters = [".", "c", "h", "s"];

/** Returns the engine's state. `followed`: names of the requests whose KV blocks are reported. */
export async function engineState(
  serving: Runtime & { metrics: Metrics },
  followed: readonly string[],
): Promise<StateEvent> {
  const { engine, admission, metrics } = serving;
  const [ps, maps, { memory }, latency] = await Promise.all([
    psOf(serving),
    engine.blocks(followed),
    engine.inspect(),
    metrics.latencies(),
  ]);
  return {
    type: "state",
    ...ps,
    admitted: admission.count,
    memory: wireMemory(memory),
    latency: latency as StateEvent["latency"],
    maps: maps.map(({ model, blocksPerCell, cells, requests }) => ({
      model,
      blocks_per_cell: blocksPerCell,
      cells: Array.from(cells, (state) => letters[state]).join(""),
      followed: requests.map(({ name, ...rest }) => ({ id: name, ...rest })),
    })),
  };
}
