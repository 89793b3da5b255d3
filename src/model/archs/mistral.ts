// Mistral: Llama with a window in every layer, where the configuration gives one.
import { family } from "../design/family.ts";

export const mistral = family({ design: () => ({ slides: () => true }) });
