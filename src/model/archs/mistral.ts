// Mistral: Llama with a window in every layer, if the configuration has one.
import { family } from "../design/family.ts";

export const mistral = family({ design: () => ({ slides: () => true }) });
