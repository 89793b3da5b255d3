// Lets the model call a function, and hands it the result, with OpenAI's package.
// Run: npx bun examples/tools.ts
import OpenAI from "openai";
import type { ChatCompletionMessageParam, ChatCompletionTool } from "openai/resources";

const client = new OpenAI({ baseURL: "http://127.0.0.1:8080/v1", apiKey: "none" });

const weatherIn = ({ city }: { city: string }) => `It is sunny in ${city}, 21 degrees.`;
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
};
const tools: ChatCompletionTool[] = [
  { type: "function", function: { name: "get_weather", parameters } },
];
const messages: ChatCompletionMessageParam[] = [
  { role: "user", content: "What is the weather in Paris?" },
];
const request = { model: "default", messages, tools, temperature: 0 };

// Larger models decide by themselves whether to call: leave out `tool_choice`.
const asked = await client.chat.completions.create({
  ...request,
  tool_choice: "required",
  parallel_tool_calls: false,
});
const message = asked.choices[0]!.message;
messages.push(message);
for (const call of message.tool_calls ?? []) {
  if (call.type !== "function") continue;
  console.log(call.function.name, call.function.arguments);
  const content = weatherIn(JSON.parse(call.function.arguments));
  messages.push({ role: "tool", tool_call_id: call.id, content });
}
const answer = await client.chat.completions.create({ ...request, tool_choice: "none" });
console.log(answer.choices[0]!.message.content);
// Prints:
// get_weather {"city": "Paris"}
// <tool_response>
// It is sunny in Paris, 21 degrees.
