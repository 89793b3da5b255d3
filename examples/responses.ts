// Continues a conversation that the server stores, with OpenAI's Responses API.
// Run: npx bun examples/responses.ts
import OpenAI from "openai";

const client = new OpenAI({ baseURL: "http://127.0.0.1:8080/v1", apiKey: "none" });
const request = { model: "default", temperature: 0, max_output_tokens: 40 };

const first = await client.responses.create({
  ...request,
  input: "What is the capital of France?",
});
console.log(first.output_text);

// Only the new message is sent.
const second = await client.responses.create({
  ...request,
  input: "And of Italy?",
  previous_response_id: first.id,
});
console.log(second.output_text);
// Prints:
// The capital of France is Paris.
// The capital of Italy is Rome.
