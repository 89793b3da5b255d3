// Holds a conversation of several turns, with Ollama's package.
// Run: npx bun examples/ollama-chat.ts
import { type Message, Ollama } from "ollama";

const client = new Ollama({ host: "http://127.0.0.1:8080" });
const messages: Message[] = [];

for (const content of ["What is the capital of France?", "And of Italy?"]) {
  messages.push({ role: "user", content });
  const options = { temperature: 0, num_predict: 40 };
  const { message } = await client.chat({ model: "default", messages, options });
  console.log(message.content);
  messages.push(message); // the server reuses the KV cache of the turns before
}
// Prints:
// The capital of France is Paris.
// The capital of Italy is Rome.
