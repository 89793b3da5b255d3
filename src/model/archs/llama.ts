// Llama 2 and 3, SmolLM2 and the many models like them.
import { family } from "../design/family.ts";

export const llama = family({});
