// All attacks, in the order in which they are tried.
import type { Attack } from "./attack.ts";
import { connectionAttacks } from "./connections.ts";
import { nameAttacks } from "./names.ts";
import { textAttacks } from "./texts.ts";
import { workAttacks } from "./work.ts";

export const attacks: readonly Attack[] = [
  ...nameAttacks,
  ...connectionAttacks,
  ...textAttacks,
  ...workAttacks,
];
