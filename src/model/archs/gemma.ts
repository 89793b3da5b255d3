// Gemma: Llama with the embedding scaled, GELU, and norms that are stored as their distance from 1.
import { family } from "../design/family.ts";

export const gemma = family({
  design: ({ hidden_size }) => ({
    config: { tie_word_embeddings: true },
    normOffset: 1,
    // Some configurations say "gelu" and mean this.
    gating: "geglu",
    embeddingScale: hidden_size ** 0.5,
  }),
});
