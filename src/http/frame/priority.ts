// The priority of a request.
import type { ServiceTier } from "../../api/sampling.ts";
import type { Priority } from "../../engine/protocol.ts";

const order: readonly Priority[] = ["LOW", "NORMAL", "HIGH"];

/** Higher levels go first. */
export const levelOf = (priority: Priority) => order.indexOf(priority);

/** Key, route and request may each limit the priority. */
export function lowestOf(...granted: readonly Priority[]): Priority {
  return order[Math.min(...granted.map(levelOf))]!;
}

/** The priority that an OpenAI request asks for by its service tier. */
export function askedPriority(tier: ServiceTier | undefined): Priority {
  return tier === "flex" ? "LOW" : "HIGH";
}

/** OpenAI's service tier of each priority. */
export const serviceTiers: Readonly<Record<Priority, ServiceTier>> = {
  LOW: "flex",
  NORMAL: "default",
  HIGH: "priority",
};
