// Python with the packages that tests and the documentation's programs call the server with.
import { pythonWith } from "../../scripts/setup/python.ts";

const packages = [
  "openai==3.49.0",
  "anthropic==2.8.0",
  "ollama==0.6.3",
  "langchain-openai==1.7.3",
] as const;

/** The path of the interpreter; the packages are installed on first use. */
export function pythonWithClients(): string {
  return pythonWith(packages.map((each) => each.replace("==", "-")).join("-"), packages);
}
