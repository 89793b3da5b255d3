// The priority of a request.
import type { ServiceTier } from "../../api/sampling.ts";
import type { Priority } from "../../engine/protocol.ts";

const order: readonly Priority[] = ["LOW", "NORMAL", "HIGH"];

/** Returns the numeric level of a priority; a higher level is scheduled first. */
export const levelOf = (priority: Priority) => order.indexOf(priority);

/** Returns the lowest of the priorities that the key, the route and the request allow. */
export function lowestOf(...granted: readonly Priority[]): Priority {
  return order[Math.min(...granted.map(levelOf))]!;
}

/** Returns the priority for the service tier of an OpenAI request. */
export function askedPriority(tier: ServiceTier | undefined): Priority {
  return tier === "flex" ? "LOW" : "HIGH";
}

/** OpenAI's name for each priority. */
export const serviceTiers: Readonly<Record<Priority, ServiceTier>> = {
  LOW: "flex",
  NORMAL: "default",
  HIGH: "priority",
};
