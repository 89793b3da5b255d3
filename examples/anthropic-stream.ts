// Counts the tokens of a prompt, then streams the answer, with Anthropic's package.
// Run: npx bun examples/anthropic-stream.ts
import Anthropic from "@anthropic-ai/sdk";
import type { MessageParam } from "@anthropic-ai/sdk/resources";

const client = new Anthropic({ baseURL: "http://127.0.0.1:8080", apiKey: "none" });
const messages: MessageParam[] = [{ role: "user", content: "What is the capital of France?" }];
const request = { model: "default", messages };

const { input_tokens: promptTokens } = await client.messages.countTokens(request);
console.log(`${promptTokens} tokens in the prompt`);

const stream = client.messages.stream({ ...request, max_tokens: 100, temperature: 0 });
stream.on("text", (text) => process.stdout.write(text));
const { usage } = await stream.finalMessage();
console.log(`\n${usage.output_tokens} tokens in the answer`);
// Prints:
// 37 tokens in the prompt
// The capital of France is Paris.
// 8 tokens in the answer
