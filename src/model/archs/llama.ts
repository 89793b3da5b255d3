// Llama 2, 3, 3.1, 3.2, SmolLM2 and the many models of the same make.
import { family } from "../design/family.ts";

export const llama = family({});
