// Gemma: Llama with a scaled embedding, GELU, and norms stored as weight - 1.
import { family } from "../design/family.ts";

export const gemma = family({
  design: ({ hidden_size }) => ({
    config: { tie_word_embeddings: true },
    normOffset: 1,
    // GELU's tanh approximation, even if the configuration says "gelu".
    gating: "geglu",
    embeddingScale: hidden_size ** 0.5,
  }),
});
