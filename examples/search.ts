// Finds the text that is closest in meaning to a query, by embeddings, with OpenAI's package.
// Run: npm start -- --model Qwen/Qwen3-Embedding-0.6B, then npx bun examples/search.ts
import OpenAI from "openai";

const client = new OpenAI({ baseURL: "http://127.0.0.1:8080/v1", apiKey: "none" });
const query = "What is the capital of France?";
const texts = ["Paris is the capital of France.", "Bread is baked in an oven."];

const { data } = await client.embeddings.create({ model: "default", input: [query, ...texts] });
const [wanted, ...vectors] = data.map(({ embedding }) => embedding);

// The vectors have length 1: their dot product is the cosine of the angle between them.
const similarity = (vector: number[]) => vector.reduce((sum, x, i) => sum + x * wanted![i]!, 0);
const found = vectors
  .map((vector, i) => ({ text: texts[i], score: similarity(vector) }))
  .sort((a, b) => b.score - a.score);
for (const { text, score } of found) console.log(score.toFixed(2), text);
// Prints:
// 0.… Paris is the capital of France.
// 0.… Bread is baked in an oven.
