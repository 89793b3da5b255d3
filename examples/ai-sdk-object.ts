// Reads an answer as an object that a Zod schema describes, with the AI SDK.
// Run: npx bun examples/ai-sdk-object.ts
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "mlx-serve",
  baseURL: "http://127.0.0.1:8080/v1",
  supportsStructuredOutputs: true, // the server enforces the schema
});
const { output } = await generateText({
  model: provider("default"),
  prompt: "What is the capital of France?",
  output: Output.object({ schema: z.object({ city: z.string(), country: z.string() }) }),
  temperature: 0,
});
console.log(`${output.city} is in ${output.country}.`);
// Prints:
// Paris is in France.
