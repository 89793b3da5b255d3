// Python with OpenAI's package.
import { pythonWith } from "../../scripts/setup/python.ts";

const OPENAI = "3.49.0";

/** The path of the interpreter. */
export function pythonWithOpenAi(): string {
  return pythonWith(`openai-${OPENAI}`, [`openai==${OPENAI}`]);
}
