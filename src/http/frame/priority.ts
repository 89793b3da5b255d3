// The priority that a request is served at.
import type { ServiceTier } from "../../api/sampling.ts";
import type { Priority } from "../../engine/protocol.ts";

const order: readonly Priority[] = ["LOW", "NORMAL", "HIGH"];

/** A higher one goes first. */
export const levelOf = (priority: Priority) => order.indexOf(priority);

/** The key, the route and the request may each limit it. */
export function lowestOf(...granted: readonly Priority[]): Priority {
  return order[Math.min(...granted.map(levelOf))]!;
}

/** What an OpenAI request asks for by its tier. */
export function askedPriority(tier: ServiceTier | undefined): Priority {
  return tier === "flex" ? "LOW" : "HIGH";
}

/** OpenAI's names of the tiers. */
export const serviceTiers: Readonly<Record<Priority, ServiceTier>> = {
  LOW: "flex",
  NORMAL: "default",
  HIGH: "priority",
};
