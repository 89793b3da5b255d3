// Pipes a prompt template into the model, for several inputs at once, with LangChain.
// Run: npx bun examples/langchain-chain.ts
import { StringOutputParser } from "@langchain/core/output_parsers";
import { ChatPromptTemplate } from "@langchain/core/prompts";
import { ChatOpenAI } from "@langchain/openai";

const model = new ChatOpenAI({
  model: "default",
  apiKey: "none",
  configuration: { baseURL: "http://127.0.0.1:8080/v1" },
  temperature: 0,
});
const prompt = ChatPromptTemplate.fromTemplate("What is the capital of {country}?");
const chain = prompt.pipe(model).pipe(new StringOutputParser());

// The server computes them in one batch.
const answers = await chain.batch([{ country: "France" }, { country: "Japan" }]);
console.log(answers.join("\n"));
// Prints:
// The capital of France is Paris.
// The capital of Japan is Tokyo.
